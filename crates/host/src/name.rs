//! Names of VMs as their managers show them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::qemu;
use crate::tree::Tree;
use crate::vm::Manager;

/// Digits of the id of a container.
const CONTAINER_ID: usize = 64;
/// Where managers keep what they run; `{id}` is a container.
const BUNDLES: [&str; 3] = [
    "/run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}/config.json",
    "/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/{id}/config.json",
    "/run/containers/storage/overlay-containers/{id}/userdata/config.json",
];
/// Names of a pod and of its namespace, among the annotations of containerd and CRI-O.
const POD_KEYS: [[&str; 2]; 2] = [
    [
        "io.kubernetes.cri.sandbox-name",
        "io.kubernetes.cri.sandbox-namespace",
    ],
    ["io.kubernetes.pod.name", "io.kubernetes.pod.namespace"],
];
/// Units that run VMs of any number, or that merely are where one was started from.
const NOT_OF_A_VM: [&str; 14] = [
    "session-",
    "user@",
    "init.scope",
    "app-",
    "libvirtd.",
    "virtqemud.",
    "pvedaemon.",
    "docker.",
    "containerd.",
    "kubelet.",
    "crio.",
    "ssh.",
    "sshd.",
    "cron.",
];
/// The element of a domain's metadata with Nova's name.
const NOVA_NAME: [&str; 2] = ["<nova:name>", "</nova:name>"];
/// Names of sockets that say nothing of the VM.
const PLAIN_SOCKETS: [&str; 6] = [
    "api",
    "ch",
    "clh-api",
    "cloud-hypervisor",
    "firecracker",
    "sock",
];

/// What is known of a VM's process.
#[derive(Debug, Default)]
pub(crate) struct Clues {
    pub(crate) pid: i32,
    pub(crate) process: String,
    pub(crate) program: Option<String>,
    pub(crate) arguments: Vec<String>,
    /// All paths of its `/proc/PID/cgroup`.
    pub(crate) cgroups: Vec<String>,
}

/// A name and where it is from.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) manager: Manager,
    pub(crate) id: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) pod: Option<String>,
    pub(crate) uuid: Option<String>,
    pub(crate) source: String,
}

/// A pod with its namespace.
#[derive(Debug, PartialEq, Eq)]
struct Pod {
    name: String,
    namespace: String,
    source: String,
}

/// The part of a container's `config.json` that is of interest.
#[derive(Default, Serialize, Deserialize)]
struct Bundle {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Clues {
    /// The unit of systemd that the process is in, if it may be one for a VM.
    pub(crate) fn unit(&self) -> Option<&str> {
        let parts = self.cgroups.iter().flat_map(|path| path.rsplit('/'));
        let mut units = parts.filter(|part| part.ends_with(".scope") || part.ends_with(".service"));
        let unit = units.next()?;
        let is_other = NOT_OF_A_VM.iter().any(|begin| unit.starts_with(begin));
        (!is_other).then_some(unit)
    }

    fn is_called(&self, names: &[&str]) -> bool {
        let program = self.program.as_deref().unwrap_or_default();
        let program = program
            .trim_end_matches(" (deleted)")
            .rsplit('/')
            .next()
            .unwrap_or_default();
        let argument = self.arguments.first().map_or("", String::as_str);
        let argument = argument.rsplit('/').next().unwrap_or_default();
        let called = [program, argument, self.process.as_str()];
        names
            .iter()
            .any(|name| called.iter().any(|called| called.starts_with(name)))
    }

    fn mentions(&self, text: &str) -> bool {
        self.arguments
            .iter()
            .any(|argument| argument.contains(text))
    }

    /// `guest=` of `-name`.
    fn qemu_name(&self) -> Option<String> {
        let option = qemu::option(&self.arguments, "name")?;
        let name = qemu::key(option, "guest", "guest")?;
        (!name.is_empty()).then_some(name)
    }

    /// A value of `-smbios type=1`.
    fn smbios(&self, key: &str) -> Option<String> {
        let mut tables = qemu::values(&self.arguments, "smbios");
        let system = tables.find(|table| qemu::key(table, "type", "").as_deref() == Some("1"))?;
        qemu::key(system, key, "")
    }

    fn uuid(&self) -> Option<String> {
        qemu::option(&self.arguments, "uuid").map(str::to_owned)
    }

    /// The id of the container that the process is in.
    fn container(&self) -> Option<&str> {
        let parts = self.cgroups.iter().flat_map(|path| path.rsplit('/'));
        parts
            .map(|part| part.trim_end_matches(".scope"))
            .find_map(container_id)
    }
}

/// The name of a VM. A unit that has several VMs names none of them.
pub(crate) fn identify(tree: &Tree, clues: &Clues, shared_units: &BTreeSet<String>) -> Named {
    let named = kata(tree, clues)
        .or_else(|| kubevirt(tree, clues))
        .or_else(|| proxmox(clues))
        .or_else(|| libvirt(tree, clues))
        .or_else(|| firecracker(clues));
    let unit = || {
        let unit = clues.unit().filter(|unit| !shared_units.contains(*unit))?;
        Some(Named {
            name: unit_name(unit),
            manager: Manager::Systemd,
            id: Some(unit.to_owned()),
            source: "the cgroup's unit".to_owned(),
            ..Named::default()
        })
    };
    let named = named
        .or_else(unit)
        .or_else(|| cloud_hypervisor(clues))
        .or_else(|| qemu_alone(clues));
    let mut named = named.unwrap_or_else(|| Named {
        name: format!("{}-{}", clues.process, clues.pid),
        source: "the process".to_owned(),
        ..Named::default()
    });
    named.uuid = clues.uuid();
    named
}

fn kubevirt(tree: &Tree, clues: &Clues) -> Option<Named> {
    let is_kubevirt =
        clues.mentions("kubevirt") || clues.smbios("manufacturer").as_deref() == Some("KubeVirt");
    let domain = clues.qemu_name().filter(|_| is_kubevirt)?;
    // libvirt's domain is NAMESPACE_NAME, and neither part may have an underscore.
    let (namespace, name) = domain.split_once('_')?;
    let pod = clues.container().and_then(|id| pod(tree, id));
    let pod = pod.map(|pod| pod.name).or_else(|| {
        let path = format!("/proc/{}/root/etc/hostname", clues.pid);
        let name = tree.optional("vms.pod", &path)?;
        name.starts_with("virt-launcher-").then_some(name)
    });
    Some(Named {
        name: name.to_owned(),
        manager: Manager::Kubevirt,
        namespace: Some(namespace.to_owned()),
        source: "-name".to_owned(),
        id: Some(domain.clone()),
        pod,
        ..Named::default()
    })
}

fn kata(tree: &Tree, clues: &Clues) -> Option<Named> {
    let named = clues.qemu_name();
    let sandbox = named
        .as_deref()
        .and_then(|name| name.strip_prefix("sandbox-"));
    let sandbox = sandbox.and_then(container_id).or_else(|| {
        let paths = clues
            .arguments
            .iter()
            .filter(|argument| argument.contains("/run/vc/"));
        let mut parts = paths.flat_map(|path| path.split(['/', ',', '=']));
        parts.find_map(container_id)
    })?;
    let found = pod(tree, sandbox);
    if found.is_none() {
        let reason = "no config.json of the sandbox with the pod's name can be read";
        tree.note_reason("vms.pod", reason, &format!("sandbox {sandbox}: {reason}"));
    }
    let (name, source) = match &found {
        Some(pod) => (pod.name.clone(), pod.source.clone()),
        None => (format!("sandbox-{sandbox}"), "the sandbox".to_owned()),
    };
    Some(Named {
        name,
        manager: Manager::Kata,
        id: Some(sandbox.to_owned()),
        namespace: found.as_ref().map(|pod| pod.namespace.clone()),
        pod: found.map(|pod| pod.name),
        source,
        ..Named::default()
    })
}

fn proxmox(clues: &Clues) -> Option<Named> {
    let id = qemu::option(&clues.arguments, "id")?;
    let is_proxmox = clues.mentions("/qemu-server/")
        || clues
            .cgroups
            .iter()
            .any(|path| path.contains(&format!("qemu.slice/{id}.scope")));
    let has_number = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    (is_proxmox && has_number).then(|| Named {
        name: clues.qemu_name().unwrap_or_else(|| id.to_owned()),
        manager: Manager::Proxmox,
        id: Some(id.to_owned()),
        source: "-name".to_owned(),
        ..Named::default()
    })
}

fn libvirt(tree: &Tree, clues: &Clues) -> Option<Named> {
    let domain = clues.qemu_name()?;
    let is_libvirt = clues.mentions("/qemu/domain-")
        || clues.mentions("/libvirt/qemu/")
        || clues
            .cgroups
            .iter()
            .any(|path| path.contains("/machine-qemu\\x2d"));
    if !is_libvirt {
        return None;
    }
    let mut named = Named {
        name: domain.clone(),
        manager: Manager::Libvirt,
        id: Some(domain.clone()),
        source: "-name".to_owned(),
        ..Named::default()
    };
    if clues
        .smbios("product")
        .is_some_and(|product| product.contains("OpenStack"))
    {
        named.manager = Manager::Openstack;
        let name = nova_name(tree, &domain);
        if let Some(nova) = name {
            (named.name, named.source) = (nova.name, nova.source);
        } else {
            let reason = "libvirt's XML of the domain with Nova's name cannot be read";
            tree.note_reason("vms.name", reason, &format!("{domain}: {reason}"));
        }
    }
    Some(named)
}

/// A name with the file that has it.
struct NovaName {
    name: String,
    source: String,
}

/// The name that Nova keeps in the metadata of a domain.
fn nova_name(tree: &Tree, domain: &str) -> Option<NovaName> {
    // A domain's name may hold a slash on no host, but a command line may.
    let domain = Some(domain).filter(|domain| !domain.contains('/'))?;
    let folders = [
        "/run/libvirt/qemu",
        "/var/run/libvirt/qemu",
        "/etc/libvirt/qemu",
    ];
    let mut paths = folders
        .iter()
        .map(|folder| format!("{folder}/{domain}.xml"));
    paths.find_map(|path| {
        // Only the element is kept: a domain's XML may have passwords.
        let element = tree.part(&path, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let begin = text.find(NOVA_NAME[0]).unwrap_or(text.len());
            let end = text
                .find(NOVA_NAME[1])
                .map_or(begin, |end| end + NOVA_NAME[1].len());
            text.get(begin..end).unwrap_or_default().as_bytes().to_vec()
        });
        let element = element.map_err(|error| tree.note_refusal("vms.name", &path, &error));
        let element = String::from_utf8(element.ok()?).ok()?;
        let name = element
            .strip_prefix(NOVA_NAME[0])?
            .strip_suffix(NOVA_NAME[1])?;
        Some(NovaName {
            name: xml_text(name),
            source: path,
        })
    })
}

/// Text of XML without its entities.
fn xml_text(text: &str) -> String {
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&amp;", "&"),
    ];
    let plain = entities.iter();
    plain.fold(text.to_owned(), |text, (entity, sign)| {
        text.replace(entity, sign)
    })
}

fn firecracker(clues: &Clues) -> Option<Named> {
    let id = qemu::option(&clues.arguments, "id").filter(|_| clues.is_called(&["firecracker"]))?;
    Some(Named {
        name: id.to_owned(),
        manager: Manager::Firecracker,
        id: Some(id.to_owned()),
        source: "--id".to_owned(),
        ..Named::default()
    })
}

fn cloud_hypervisor(clues: &Clues) -> Option<Named> {
    let manager = match () {
        () if clues.is_called(&["cloud-hyperv"]) => Manager::CloudHypervisor,
        () if clues.is_called(&["firecracker"]) => Manager::Firecracker,
        () => return None,
    };
    let options = ["api-socket", "api-sock"];
    let mut sockets = options
        .iter()
        .filter_map(|name| qemu::option(&clues.arguments, name));
    let socket = sockets.next()?;
    let path = qemu::key(socket, "path", "path")?;
    let mut parts = path.rsplit('/').filter(|part| !part.is_empty());
    let file = parts.next()?;
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
    let name = match PLAIN_SOCKETS.contains(&stem) {
        true => parts.next()?,
        false => stem,
    };
    Some(Named {
        name: name.to_owned(),
        manager,
        id: Some(path.clone()),
        source: "the API socket".to_owned(),
        ..Named::default()
    })
}

fn qemu_alone(clues: &Clues) -> Option<Named> {
    let is_qemu = clues.is_called(&["qemu", "kvm"]);
    let name = clues.qemu_name().filter(|_| is_qemu);
    match name {
        Some(name) => Some(Named {
            name,
            manager: Manager::Qemu,
            source: "-name".to_owned(),
            ..Named::default()
        }),
        None => is_qemu.then(|| Named {
            name: format!("{}-{}", clues.process, clues.pid),
            manager: Manager::Qemu,
            source: "the process".to_owned(),
            ..Named::default()
        }),
    }
}

/// The pod of a container or sandbox.
fn pod(tree: &Tree, id: &str) -> Option<Pod> {
    let mut paths = BUNDLES.iter().map(|path| path.replace("{id}", id));
    paths.find_map(|path| {
        // Only these annotations are kept: the environment of a container may have passwords.
        let text = tree.part(&path, |bytes| {
            let bundle: Result<Bundle, _> = serde_json::from_slice(bytes);
            let mut bundle = bundle.unwrap_or_default();
            let is_wanted = |key: &str| POD_KEYS.iter().flatten().any(|wanted| *wanted == key);
            bundle.annotations.retain(|key, _| is_wanted(key));
            serde_json::to_vec(&bundle).unwrap_or_default()
        });
        let text = text.map_err(|error| tree.note_refusal("vms.pod", &path, &error));
        let bundle: Bundle = serde_json::from_slice(&text.ok()?).ok()?;
        let value = |key: &str| bundle.annotations.get(key).cloned();
        let mut keys = POD_KEYS.iter();
        let (name, namespace) =
            keys.find_map(|[name, namespace]| value(name).zip(value(namespace)))?;
        Some(Pod {
            name,
            namespace,
            source: path,
        })
    })
}

/// The id of a container that a text is or ends by: `cri-containerd-0123…`.
fn container_id(text: &str) -> Option<&str> {
    let start = text.len().checked_sub(CONTAINER_ID)?;
    let id = text.get(start..)?;
    let is_id = id
        .bytes()
        .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let is_apart = start == 0 || text[..start].ends_with(['-', ':']);
    (is_id && is_apart).then_some(id)
}

/// The name of a VM out of that of its unit: `machine-web.scope`, `microvm@web.service`.
fn unit_name(unit: &str) -> String {
    let stem = unit.rsplit_once('.').map_or(unit, |(stem, _)| stem);
    let stem = stem.strip_prefix("machine-").unwrap_or(stem);
    let stem = stem.split_once('@').map_or(stem, |(_, instance)| instance);
    unescape_unit(stem)
}

/// `\x2d` and the like as the bytes that they stand for (`unit_name_escape` of systemd).
fn unescape_unit(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((plain, escape)) = rest.split_once("\\x") {
        bytes.extend_from_slice(plain.as_bytes());
        let code = escape
            .get(..2)
            .and_then(|code| u8::from_str_radix(code, 16).ok());
        match code {
            Some(code) => {
                bytes.push(code);
                rest = &escape[2..];
            }
            None => {
                bytes.extend_from_slice(b"\\x");
                rest = escape;
            }
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Makes names unique: with the namespace, then with the process.
pub(crate) fn make_unique(named: &mut [Named], pids: &[i32]) {
    for round in 0..2 {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for named in named.iter() {
            *counts.entry(named.name.clone()).or_default() += 1;
        }
        let twice = |name: &str| counts.get(name).is_some_and(|count| *count > 1);
        for (named, pid) in named.iter_mut().zip(pids) {
            if !twice(&named.name) {
                continue;
            }
            named.name = match (&named.namespace, round) {
                (Some(namespace), 0) => format!("{namespace}/{}", named.name),
                (_, 0) => continue,
                _ => format!("{} ({pid})", named.name),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_units() {
        let id = "0".repeat(63) + "f";
        assert_eq!(
            container_id(&format!("cri-containerd-{id}")),
            Some(id.as_str())
        );
        assert_eq!(container_id(&id), Some(id.as_str()));
        assert_eq!(container_id(&format!("a{id}")), None);
        assert_eq!(container_id("é"), None);
        assert_eq!(unit_name("machine-a\\x2db.scope"), "a-b");
        assert_eq!(unit_name("microvm@web.service"), "web");
        assert_eq!(unit_name("a\\xzz\\x.scope"), "a\\xzz\\x");
        assert_eq!(xml_text("a &lt;b&gt; &amp;lt;"), "a <b> &lt;");
    }

    #[test]
    fn equal_names_are_distinguished() {
        let named = |name: &str, namespace: Option<&str>| Named {
            name: name.to_owned(),
            namespace: namespace.map(str::to_owned),
            ..Named::default()
        };
        let mut names = [
            named("web", Some("a")),
            named("web", Some("b")),
            named("db", None),
            named("db", None),
            named("one", Some("a")),
        ];
        make_unique(&mut names, &[1, 2, 3, 4, 5]);
        let names: Vec<&str> = names.iter().map(|named| named.name.as_str()).collect();
        assert_eq!(names, ["a/web", "b/web", "db (3)", "db (4)", "one"]);
    }
}
