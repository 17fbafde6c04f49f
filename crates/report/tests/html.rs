//! What every page must hold: nothing that it was given acts on its reader, it reaches no network, it
//! is small, and it is always the same.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use stealtime_lab::compare::compare;
use stealtime_lab::metric::Subject;
use stealtime_lab::run::run;
use stealtime_lab::scenario::Scenario;
use stealtime_lab::simulate::Simulator;
use stealtime_lab::sweep::{Summary, Time};
use stealtime_report::html::{
    Axis, Chart, Interval, Lead, Mark, Page, Step, Table, analyze, simulate, sweep,
};

use crate::answers;

/// What a page may weigh without what was measured.
const MOST_BYTES: usize = 1 << 20;

/// A name that would end any element, attribute or string, run a script, move a cursor, and turn the
/// direction of writing.
const HOSTILE: &str = "</script></title></style>--><img src=x onerror=alert(1)>\"'`&amp;{{7*7}}{% raw %}\
                       \u{1b}[2J\u{202e}\u{2028}\u{0}${x}";

fn assets() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("assets")
}

fn asset(name: &str) -> String {
    std::fs::read_to_string(assets().join(name)).expect("an asset")
}

fn text(page: &Page) -> String {
    let mut bytes = Vec::new();
    page.write(&mut bytes).expect("a page");
    String::from_utf8(bytes).expect("UTF-8")
}

/// The page without its own style and scripts, which hold nothing that it was given.
fn given(page: &str) -> String {
    let mut rest = page.to_owned();
    for own in ["page.css", "charts.min.js", "page.js"] {
        assert!(rest.contains(&asset(own)), "{own} is not in the page");
        rest = rest.replace(&asset(own), "");
    }
    rest
}

/// The data of the charts.
fn data(page: &str) -> serde_json::Value {
    let begin = "<script type=\"application/json\" id=\"data\">";
    let (_, rest) = page.split_once(begin).expect("data");
    let (data, _) = rest.split_once("</script>").expect("its end");
    serde_json::from_str(data).expect("JSON")
}

fn hash(text: &str) -> String {
    format!(
        "'sha256-{}'",
        STANDARD.encode(Sha256::digest(text.as_bytes()))
    )
}

/// A page with the name wherever a page takes text.
fn hostile_page() -> Page {
    let mut page = Page::new("simulate", HOSTILE).made_by(HOSTILE);
    page.fact(HOSTILE);
    page.warning(HOSTILE);
    page.lead(Lead {
        about: HOSTILE.into(),
        says: HOSTILE.into(),
        more: vec![HOSTILE.into()],
        steps: vec![Step {
            label: HOSTILE.into(),
            command: HOSTILE.into(),
        }],
        mark: Mark::Better,
    });
    page.section(HOSTILE);
    page.text(HOSTILE);
    page.note(HOSTILE);
    page.lines(HOSTILE);
    let row = Interval {
        name: HOSTILE.into(),
        value: f64::NAN,
        half_width: Some(1.0),
        published: None,
        mark: Mark::Noise,
        says: HOSTILE.into(),
    };
    let axis = Axis::plain(HOSTILE, HOSTILE);
    page.chart(
        HOSTILE,
        HOSTILE,
        Chart::Intervals {
            axis,
            rows: vec![row],
        },
    );
    let mut table = Table::new(HOSTILE, &[HOSTILE], 1)
        .explained(HOSTILE)
        .with_foot(HOSTILE);
    table.row([HOSTILE.into()]);
    page.table(table);
    page
}

/// A scenario of two variants, run.
fn simulated() -> Page {
    let scenario = "about = \"a <b>small</b> one\"\n[host]\nprofile = \"skylake-sp\"\ncpus = 2\n\
        [[vm]]\nname = \"web\"\nvcpus = 2\nworkload = { name = \"ticks\", period_ns = \"100us\" }\n\
        [variants.polling]\n[variants.off]\nkvm.halt_poll_ns = 0\n\
        [run]\nduration = \"5ms\"\nwarmup = \"1ms\"\nseeds = 2\n";
    let scenario = Scenario::from_text("small.toml", scenario).expect("a scenario");
    let variants: Vec<_> = scenario.variants.iter().collect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let one = std::num::NonZeroUsize::MIN;
    let runs = run(&Simulator, &scenario, &variants, one, &stop, &|_, _| {}).expect("runs");
    let comparison = compare(&scenario, &runs);
    simulate::page(
        &comparison,
        scenario.text(),
        "stealtime simulate small.toml",
    )
}

/// `STEALTIME_BLESS=1` writes it anew.
#[test]
fn the_policy_allows_the_pages_own_scripts_and_nothing_else() {
    let policy = format!(
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; script-src {} {}; \
         style-src {}; style-src-attr 'unsafe-inline'\n",
        hash(&asset("charts.min.js")),
        hash(&asset("page.js")),
        hash(&asset("page.css"))
    );
    let path = assets().join("policy.txt");
    if std::env::var_os("STEALTIME_BLESS").is_some() {
        // This test holds the one that it was built with.
        return std::fs::write(&path, &policy).expect("a writable tree");
    }
    let is = std::fs::read_to_string(&path).expect("the policy");
    assert_eq!(
        is, policy,
        "STEALTIME_BLESS=1 writes assets/policy.txt anew"
    );
    let escaped = policy.trim_end().replace('\'', "&#39;");
    let meta = format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{escaped}\">");
    assert!(text(&hostile_page()).contains(&meta));
}

#[test]
fn no_name_breaks_out_of_its_place() {
    let page = text(&hostile_page());
    let given = given(&page);
    for broken in [
        "<img",
        "onerror=alert(1)>",
        "49",
        "\u{1b}",
        "\u{202e}",
        "\u{2028}",
        "\u{0}",
    ] {
        assert!(!given.contains(broken), "{broken:?} in\n{given}");
    }
    // Only the template's own elements: no name has opened or closed one.
    for (element, count) in [
        ("<script", 3),
        ("</script>", 3),
        ("</title>", 1),
        ("</style>", 1),
        ("-->", 0),
    ] {
        assert_eq!(given.matches(element).count(), count, "{element}");
    }
    // Attributes end where they should: the name's quotes are not quotes.
    assert!(given.contains("aria-label=\"&lt;/script&gt;&lt;/title&gt;"));
    let shown = "\"'`&amp;{{7*7}}{% raw %}\\u{1b}[2J\\u{202e}\\u{2028}\\u{0}${x}";
    let name = data(&page)[0]["rows"][0]["name"]
        .as_str()
        .map(str::to_owned);
    assert!(name.is_some_and(|name| name.ends_with(shown)));
}

#[test]
fn data_stays_inside_its_element() {
    let page = text(&hostile_page());
    let (_, rest) = page.split_once("id=\"data\">").expect("data");
    let (data, _) = rest.split_once("</script>").expect("its end");
    assert!(!data.contains(['<', '>', '&', '\u{2028}', '\n']), "{data}");
    // What is no number is null: no drawing program would know `NaN`.
    assert!(data.contains("\"value\":null"));
}

#[test]
fn hostile_answers_are_shown_and_do_nothing() {
    let answers = answers::answers();
    let page = text(&analyze::page(&answers, &[], None, "stealtime analyze x"));
    let given = given(&page);
    assert!(!given.contains(['\u{1b}', '\u{202e}']));
    assert!(given.contains("=vm\\u{1b}[2J\\u{202e}b"));
    let data = data(&page).to_string();
    assert!(
        !data.contains('\u{202e}') && data.contains("u{202e}"),
        "{data}"
    );
}

#[test]
fn a_page_reaches_no_network() {
    for page in [text(&hostile_page()), text(&simulated())] {
        let given = given(&page);
        for word in [
            "src=",
            "@import",
            "url(",
            "<link rel=\"stylesheet",
            "<iframe",
            "<object",
            "<base",
        ] {
            let found = given.replace("img src=x onerror", "").matches(word).count();
            assert_eq!(found, 0, "{word}");
        }
        for target in given.split("href=\"").skip(1) {
            assert!(
                target.starts_with('#') || target.starts_with("data:,\""),
                "{target:.40}"
            );
        }
        assert!(!asset("page.css").contains("url("));
    }
    // Neither of the scripts can end its element.
    for script in ["charts.min.js", "page.js"] {
        let text = asset(script).to_lowercase();
        assert!(
            !text.contains("</script") && !text.contains("<!--"),
            "{script}"
        );
    }
}

#[test]
fn the_license_of_what_is_embedded_is_in_the_page() {
    let page = text(&simulated());
    for line in asset("LICENSE-charts")
        .lines()
        .filter(|line| !line.contains('/'))
    {
        assert!(page.contains(line), "{line}");
    }
}

#[test]
fn a_page_is_small_and_always_the_same() {
    let page = text(&simulated());
    assert_eq!(page, text(&simulated()));
    assert!(page.len() < MOST_BYTES, "{} bytes", page.len());
    let empty = text(&Page::new("analyze", ""));
    assert!(empty.len() < MOST_BYTES * 3 / 4, "{} bytes", empty.len());
}

#[test]
fn a_comparison_answers_first() {
    let page = text(&simulated());
    let given = given(&page);
    let at = |what: &str| given.find(what).unwrap_or_else(|| panic!("no {what}"));
    let order = [
        "a &lt;b&gt;small&lt;/b&gt; one",
        "<b>off:</b> ",
        "What changes against polling",
        "data-chart=\"0\"",
        "<h2>Tables</h2>",
        "Where vCPU time went</h2>",
        "stealtime simulate small.toml\n",
        "kvm.halt_poll_ns = 0",
    ];
    let places: Vec<usize> = order.iter().map(|what| at(what)).collect();
    assert!(places.is_sorted(), "{places:?}");
    let charts = data(&page);
    let charts = charts.as_array().expect("charts");
    let kinds: Vec<&str> = charts
        .iter()
        .filter_map(|chart| chart["kind"].as_str())
        .collect();
    assert!(
        kinds.contains(&"intervals") && kinds.contains(&"stacked"),
        "{kinds:?}"
    );
    // The parts of a bar of time are all of it.
    let time = charts
        .iter()
        .find(|chart| chart["kind"] == "stacked")
        .expect("bars");
    for bar in 0..2 {
        let parts = time["parts"].as_array().expect("parts").iter();
        let sum: f64 = parts.filter_map(|part| part["values"][bar].as_f64()).sum();
        assert!((sum - 100.0).abs() < 0.01, "{sum}");
    }
}

#[test]
fn a_sweep_shows_where_time_went_by_each_value() {
    let mut summary = Summary {
        runs: 6,
        finished: 6,
        failed: 0,
        first_failure: None,
        identical_seeds: false,
        effects: Vec::new(),
        best: Vec::new(),
        times: vec![Time {
            of: Subject::Vm("web".to_owned()),
            knob: "kvm.halt_poll_ns".to_owned(),
            levels: ["0", "50us"].map(str::to_owned).into(),
            states: vec![
                ("in guest", vec![Some(30.0), Some(40.0)]),
                ("spinning", vec![Some(10.0), Some(0.0)]),
                ("halt polling", vec![Some(0.0), Some(20.0)]),
                ("asleep", vec![Some(70.0), None]),
                ("steal", vec![Some(0.0), Some(0.0)]),
            ],
        }],
    };
    let page = |summary: &Summary| {
        text(&sweep::page(
            summary,
            "a small one",
            "[host]\n",
            Vec::new(),
            "stealtime sweep small.toml",
        ))
    };
    let given = page(&summary);
    assert!(given.contains("Where vCPU time went</h2>"));
    assert!(
        given.contains("VM web: time of its vCPUs by kvm.halt_poll_ns"),
        "a title"
    );
    let charts = data(&given);
    assert_eq!(charts[0]["kind"], "stacked");
    assert_eq!(charts[0]["rows"], serde_json::json!(["0", "50us"]));
    let parts = charts[0]["parts"].as_array().expect("parts");
    let parts_shown: Vec<_> = parts
        .iter()
        .map(|part| (part["name"].as_str().unwrap_or(""), &part["values"]))
        .collect();
    // Spinning is apart from the rest of the guest's time; what is 0 everywhere is left out.
    assert_eq!(
        parts_shown,
        [
            ("in the guest", &serde_json::json!([20.0, 40.0])),
            ("spinning in the guest", &serde_json::json!([10.0, 0.0])),
            ("polling in halts", &serde_json::json!([0.0, 20.0])),
            ("asleep", &serde_json::json!([70.0, 0.0])),
        ]
    );
    summary.times.clear();
    assert!(!page(&summary).contains("Where vCPU time went"));
}
