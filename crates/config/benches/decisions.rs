//! Measures how long one decision takes: `cargo bench -p config`.

#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a bench prints, and ends when it cannot measure"
)]

use std::hint::black_box;
use std::time::Instant;

use config::{
    EnvFile, EnvRules, FileRules, Format, Layers, OutgoingRules, Protocol, Settings, SkipRules,
    Surroundings, verify,
};

const COMPLETE: &str = include_str!("../tests/examples/complete.yaml");

fn main() {
    let defaults = Settings::default();
    let complete = Layers::new()
        .file("complete.yaml", COMPLETE, Format::Yaml)
        .resolve()
        .expect("the example is good")
        .settings;
    files("defaults", &defaults);
    files("four lists and two mappings", &complete);
    outgoing(&complete);
    let skip = SkipRules::new(&defaults);
    measure("skip: /usr/bin/python3", || {
        skip.choose(black_box(b"/usr/bin/python3"))
    });
    environment(&complete);
    measure("verify: the complete example", || {
        verify("x", black_box(COMPLETE), Format::Yaml)
    });
}

fn files(name: &str, settings: &Settings) {
    let surroundings = Surroundings {
        home: Some(b"/people/me".to_vec()),
        working_directory: Some(b"/people/me/src/shop".to_vec()),
        temporary: None,
        code: vec![b"/people/me/src/shop/bin".to_vec()],
    };
    let rules = FileRules::new(&settings.feature.fs, &surroundings).expect("the rules are small");
    for path in [
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "/people/me/src/shop/node_modules/express/lib/router/index.js",
        "/etc/shop/config.yaml",
        "/var/run/secrets/kubernetes.io/serviceaccount/token",
        "/srv/data/catalogue/2024/index.bin",
    ] {
        measure(&format!("files, {name}: {path}"), || {
            rules.choose(black_box(path.as_bytes()), false);
        });
    }
}

fn outgoing(settings: &Settings) {
    let rules =
        OutgoingRules::new(&settings.feature.network.outgoing).expect("the rules are small");
    let address = ([10, 1, 2, 3], 8080).into();
    measure("outgoing: four entries, one name known", || {
        rules.choose(
            black_box(Protocol::Tcp),
            address,
            &["db.shop.svc.cluster.local"],
        )
    });
}

fn environment(settings: &Settings) {
    let rules =
        EnvRules::new(&settings.feature.env, &EnvFile::default()).expect("the rules are small");
    let variables: Vec<_> = (0..100)
        .map(|number| (format!("VARIABLE_{number}").into_bytes(), b"value".to_vec()))
        .collect();
    measure("env: 100 variables of the target, 100 local", || {
        rules.apply(variables.clone(), variables.clone())
    });
}

/// The median of many short runs, which is robust against other load of the machine.
fn measure<T>(name: &str, mut action: impl FnMut() -> T) {
    let mut runs: Vec<f64> = (0..101)
        .map(|_| {
            let started = Instant::now();
            for _ in 0..100 {
                black_box(action());
            }
            started.elapsed().as_secs_f64() * 1e9 / 100.0
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    println!("{:>10.0} ns  {name}", runs[runs.len() / 2]);
}
