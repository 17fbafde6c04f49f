//! Family `ple`: growing and shrinking of pause-loop windows.

use serde_json::{Value, json};
use stealtime_hypervisor::directed_yield::ple::{
    PleKnobs, PleVendor, PleWindow, grow_ple_window, shrink_ple_window,
};

use crate::files;

fn columns(vector: &Value) -> Vec<u32> {
    let columns = vector.as_array().unwrap().iter();
    columns
        .map(|c| u32::try_from(c.as_u64().unwrap()).unwrap())
        .collect()
}

fn knobs(line: &Value, vendor: PleVendor) -> PleKnobs {
    let param = |key: &str| u32::try_from(line[key].as_u64().unwrap()).unwrap();
    PleKnobs {
        vendor,
        gap: 128,
        window: param("window"),
        grow: param("grow"),
        shrink: param("shrink"),
        max: param("max"),
    }
}

fn window_step(window: &mut PleWindow, knobs: &PleKnobs, step: &str) {
    match step {
        "grow" => window.grow(knobs),
        "shrink" => window.shrink(knobs),
        "enter" => {
            let (dirty, value) = (window.dirty(), window.window());
            assert_eq!(window.enter(), dirty.then_some(value));
        }
        _ => panic!("no step {step}"),
    }
}

#[test]
fn ple() {
    for file in files::of("ple") {
        for line in file.sequences() {
            let function = line["fn"].as_str().unwrap();
            let vendor = match function {
                "svm_ple" => PleVendor::Svm,
                _ => PleVendor::Vmx,
            };
            let mut window = None;
            for (step, vector) in line["v"].as_array().unwrap().iter().enumerate() {
                let got = match function {
                    "__grow_ple_window" | "__shrink_ple_window" => {
                        let c = columns(vector);
                        let result = if function == "__grow_ple_window" {
                            grow_ple_window(c[0], c[1], c[2], c[3])
                        } else {
                            shrink_ple_window(c[0], c[1], c[2], c[3])
                        };
                        json!([c[0], c[1], c[2], c[3], result])
                    }
                    "vmx_ple" | "svm_ple" => {
                        let knobs = knobs(&line, vendor);
                        let window = window.get_or_insert_with(|| PleWindow::new(&knobs));
                        let name = vector[0].as_str().unwrap();
                        window_step(window, &knobs, name);
                        json!([name, window.window(), u8::from(window.dirty())])
                    }
                    _ => panic!("no such function in this family: {function}"),
                };
                assert_eq!(
                    got,
                    *vector,
                    "{}: family ple, seed {}, {function}, step {step}",
                    file.path.display(),
                    line["seed"]
                );
            }
        }
    }
}
