use config::{AddressFilter, FileMode, Format, Layers, Origin, ProblemKind};

const FILE: &str = "
target: deployment/checkout
feature:
  env: {include: [A, B], override: {KEEP: file, BOTH: file}}
  fs: read
  network: {outgoing: {filter: {local: ['db']}}}
";

fn layers() -> Layers {
    Layers::new().file("standin.yaml", FILE, Format::Yaml)
}

#[test]
fn flags_override_variables_and_variables_override_the_file() {
    let variables = [
        ("STANDIN_FS_MODE", "localwithoverrides"),
        ("STANDIN_TARGET", "process/7"),
        ("STANDIN_HOSTNAME", "no"),
        ("STANDIN_LOG", "debug"),
        ("PATH", "/bin"),
    ];
    // The order in which layers are added does not matter.
    let resolved = Layers::new()
        .flag("--fs-mode", "feature.fs.mode", "write")
        .flag("--env", "feature.env.override", "BOTH=flag=1")
        .flag("--remote", "feature.network.outgoing.filter.remote", "api")
        .flag("--remote", "feature.network.outgoing.filter.remote", ":443")
        .variables(variables, &["STANDIN_LOG"])
        .file("standin.yaml", FILE, Format::Yaml)
        .resolve()
        .unwrap();
    let settings = &resolved.settings;
    assert!(resolved.warnings.problems().is_empty());
    assert_eq!(settings.feature.fs.mode, FileMode::Write);
    assert!(!settings.feature.hostname);
    let target = settings
        .target
        .as_ref()
        .and_then(|target| target.path.as_ref());
    assert_eq!(
        target.map(ToString::to_string).as_deref(),
        Some("process/7")
    );
    let overrides: Vec<_> = settings.feature.env.r#override.iter().collect();
    assert_eq!(overrides.len(), 2);
    assert_eq!(overrides[1].1.0, "flag=1");
    let Some(AddressFilter::Remote(patterns)) = &settings.feature.network.outgoing.filter else {
        panic!("the flags replace the filter of the file");
    };
    let patterns: Vec<_> = patterns.iter().map(ToString::to_string).collect();
    assert_eq!(patterns, ["api", ":443"]);

    let origin = |key: &str| resolved.origins.of(key).to_string();
    assert_eq!(origin("feature.fs.mode"), "--fs-mode");
    assert_eq!(origin("target.path"), "STANDIN_TARGET");
    assert_eq!(origin("feature.hostname"), "STANDIN_HOSTNAME");
    assert_eq!(origin("feature.env.include"), "standin.yaml:4:18");
    assert_eq!(origin("feature.env.override.KEEP"), "standin.yaml:4:43");
    assert_eq!(origin("feature.env.override.BOTH"), "--env");
    assert_eq!(resolved.origins.of("skip_build_tools"), &Origin::Default);
}

#[test]
fn a_short_form_and_its_long_form_are_the_same_key() {
    let resolved = layers()
        .file(
            "second.json",
            r#"{"feature": {"fs": false, "network": false}}"#,
            Format::Json,
        )
        .flag("--dns", "feature.network.dns.enabled", "true")
        .resolve()
        .unwrap();
    let feature = &resolved.settings.feature;
    assert_eq!(feature.fs.mode, FileMode::Local);
    assert!(!feature.network.outgoing.tcp);
    assert!(feature.network.dns.enabled);
    assert!(feature.network.outgoing.filter.is_some());
}

#[test]
fn the_effective_configuration_has_reasons_and_no_secrets() {
    let resolved = layers()
        .flag("--password", "feature.env.override", "PASSWORD=hunter2")
        .resolve()
        .unwrap();
    let shown: Vec<String> = resolved
        .effective()
        .into_iter()
        .map(|effective| {
            format!(
                "{} = {} ({})",
                effective.key, effective.value, effective.origin
            )
        })
        .collect();
    for line in [
        "feature.env.enabled = true (default)",
        "feature.env.include = [\"A\",\"B\"] (standin.yaml:4:18)",
        "feature.env.override.PASSWORD = (hidden) (--password)",
        "feature.env.env_file = null (default)",
        "feature.fs.mode = \"read\" (standin.yaml:5:7)",
        "feature.fs.mapping = {} (default)",
        "feature.network.outgoing.filter.local = [\"db\"] (standin.yaml:6:40)",
        "target.path = \"deployment/checkout\" (standin.yaml:2:9)",
    ] {
        assert!(
            shown.iter().any(|shown| shown == line),
            "{line} in\n{}",
            shown.join("\n")
        );
    }
    assert!(!format!("{resolved:?}").contains("hunter2"));
}

#[test]
fn problems_of_all_layers_are_reported_together() {
    let report = layers()
        .file("broken.json", "{\"feature\": ", Format::Json)
        .variables([("STANDIN_FS_MODE", "raed"), ("STANDIN_FS_MDOE", "x")], &[])
        .flag("--tcp", "feature.network.outgoing.tcp", "maybe")
        .flag("--env", "feature.env.override", "NO_VALUE")
        .flag("--x", "feature.nonsense", "1")
        .resolve()
        .unwrap_err();
    let kinds: Vec<String> = report
        .problems()
        .iter()
        .map(|problem| format!("{}:{}", problem.location.source, problem.kind))
        .collect();
    assert_eq!(
        kinds,
        [
            "broken.json:this is not JSON: expected value after colon in object property",
            "environment:unknown value `raed`",
            "environment:unknown variable `STANDIN_FS_MDOE`",
            "command line:expected true or false, found text",
            "command line:expected a map, found text",
            "command line:unknown key `nonsense`",
        ]
    );
    let hint = report
        .problems()
        .iter()
        .find_map(|problem| match &problem.kind {
            ProblemKind::UnknownVariable { .. } => problem.kind.hint(),
            _ => None,
        });
    assert_eq!(hint.as_deref(), Some("did you mean `STANDIN_FS_MODE`?"));
}
