//! Options of a VMM's command line.

/// The arguments of `/proc/PID/cmdline`.
pub(crate) fn arguments(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    let parts = bytes.split(|byte| *byte == 0);
    parts
        .map(|part| String::from_utf8_lossy(part).into_owned())
        .collect()
}

/// Options that are of interest, with what they say of a VM.
const OPTIONS: [&str; 9] = [
    "accel",
    "name",
    "id",
    "uuid",
    "smbios",
    "cpu",
    "overcommit",
    "api-sock",
    "api-socket",
];
/// Marks of managers, which may be in any argument; of several the first one counts.
const MARKS: [&str; 6] = [
    "kubevirt",
    "/run/vc/",
    "/qemu/domain-",
    "/libvirt/qemu/",
    "/qemu-server/",
    "accel=kvm",
];

/// A command line without the arguments that are of no interest: some have passwords.
pub(crate) fn of_interest(bytes: &[u8]) -> Vec<u8> {
    let command_line = arguments(bytes);
    let is_option = |argument: &str| {
        let name = argument.trim_start_matches('-');
        let name = name.split_once('=').map_or(name, |(name, _)| name);
        argument.starts_with('-') && OPTIONS.contains(&name)
    };
    let shown = command_line
        .iter()
        .enumerate()
        .filter_map(|(index, argument)| {
            let is_value = index > 0
                && is_option(&command_line[index - 1])
                && !command_line[index - 1].contains('=');
            match () {
                () if index == 0 || is_option(argument) || is_value => Some(argument.as_str()),
                () if argument == "-enable-kvm" => Some(argument),
                () => MARKS
                    .into_iter()
                    .find(|mark| argument.contains(mark))
                    .map(|mark| {
                        // Of a path with the id of a sandbox all matters, of others that it has the mark.
                        if mark == "/run/vc/" { argument } else { mark }
                    }),
            }
        });
    let shown: Vec<&str> = shown.collect();
    shown.join("\0").into_bytes()
}

/// The value of an option: `-name VALUE`, `--name VALUE`, `--name=VALUE`.
pub(crate) fn option<'t>(arguments: &'t [String], name: &str) -> Option<&'t str> {
    values(arguments, name).next()
}

/// All values of an option.
pub(crate) fn values<'t>(arguments: &'t [String], name: &str) -> impl Iterator<Item = &'t str> {
    let indexes = 0..arguments.len();
    indexes.filter_map(move |index| {
        let argument = arguments[index].strip_prefix('-')?;
        let argument = argument.strip_prefix('-').unwrap_or(argument);
        match argument.strip_prefix(name)? {
            "" => arguments.get(index + 1).map(String::as_str),
            value => value.strip_prefix('='),
        }
    })
}

/// The value of a key within an option of QEMU: `guest=a,,b,debug-threads=on`. Two commas stand for
/// one. The first value may lack its key, which is `implied`.
pub(crate) fn key(option: &str, key: &str, implied: &str) -> Option<String> {
    let parts = parts(option);
    let mut values =
        parts
            .iter()
            .enumerate()
            .filter_map(|(index, part)| match part.split_once('=') {
                Some((name, value)) if name == key => Some(value.to_owned()),
                None if index == 0 && key == implied => Some(part.clone()),
                _ => None,
            });
    values.next()
}

/// Whether an option of `-cpu` switches a feature on or off: `+x`, `-x`, `x=on`, `x=off`, or `x`.
pub(crate) fn switch(option: &str, feature: &str) -> Option<bool> {
    let feature = feature.replace('_', "-");
    let parts = parts(option);
    let mut states = parts.iter().skip(1).filter_map(|part| {
        let part = part.replace('_', "-");
        let (name, value) = part.split_once('=').unwrap_or((&part, "on"));
        match (name.strip_prefix('-'), name.strip_prefix('+')) {
            (Some(name), _) => (name == feature).then_some(false),
            (_, Some(name)) => (name == feature).then_some(true),
            _ => (name == feature).then_some(value != "off"),
        }
    });
    states.next_back()
}

fn parts(option: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut signs = option.chars().peekable();
    while let Some(sign) = signs.next() {
        if sign == ',' && signs.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(sign);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_command_lines() {
        let line = b"qemu\0-name\0guest=a,,b=c,debug-threads=on\0--id=7\0--id\08\0-m\0";
        let arguments = arguments(line);
        let name = option(&arguments, "name").expect("a name");
        assert_eq!(key(name, "guest", "guest").as_deref(), Some("a,b=c"));
        assert_eq!(
            key("web,debug-threads=on", "guest", "guest").as_deref(),
            Some("web")
        );
        assert_eq!(key(name, "process", "guest"), None);
        assert_eq!(values(&arguments, "id").collect::<Vec<_>>(), ["7", "8"]);
        assert_eq!(option(&arguments, "m"), None);
    }

    #[test]
    fn arguments_with_secrets_are_left_out() {
        let line = b"/usr/bin/kvm\0-id\x00100\0-vnc\0password=x\0-object\0secret,data=y,file=\
                     /var/lib/libvirt/qemu/domain-1-a/k\0--api-sock=/a.sock\0-enable-kvm\0";
        let shown = of_interest(line);
        let shown = String::from_utf8(shown).expect("UTF-8").replace('\0', " ");
        let expected = "/usr/bin/kvm -id 100 /qemu/domain- --api-sock=/a.sock -enable-kvm";
        assert_eq!(shown, expected);
        // What is left is left as it is.
        let line = expected.replace(' ', "\0");
        assert_eq!(of_interest(line.as_bytes()), line.as_bytes());
    }

    #[test]
    fn features_of_cpus() {
        let option = "host,+x2apic,-kvmclock,kvm_steal_time=off,hv-time";
        assert_eq!(switch(option, "kvmclock"), Some(false));
        assert_eq!(switch(option, "kvm-steal-time"), Some(false));
        assert_eq!(switch(option, "x2apic"), Some(true));
        assert_eq!(switch(option, "hv-time"), Some(true));
        assert_eq!(switch(option, "kvm"), None);
    }
}
