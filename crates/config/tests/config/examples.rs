use std::path::Path;

use config::{Format, Severity, Target, WorkloadKind, schema_text, verify};

use crate::load;
use crate::schema::violations;

const COMPLETE: [(&str, Format); 3] = [
    (include_str!("../examples/complete.json"), Format::Json),
    (include_str!("../examples/complete.yaml"), Format::Yaml),
    (include_str!("../examples/complete.toml"), Format::Toml),
];
const FROM_MIRRORD: &str = include_str!("../examples/from-mirrord.json");

#[test]
fn all_formats_give_the_same_settings() {
    let settings = COMPLETE.map(|(text, format)| {
        let resolved = load(text, format);
        assert!(
            resolved.warnings.problems().is_empty(),
            "{}",
            resolved.warnings
        );
        resolved.settings
    });
    assert_eq!(settings[0], settings[1]);
    assert_eq!(settings[0], settings[2]);
    let target = settings[0].target.clone().and_then(|target| target.path);
    assert_eq!(
        target,
        Some(Target::Workload {
            kind: WorkloadKind::Deployment,
            name: "checkout".to_owned(),
            container: Some("app".to_owned()),
        })
    );
}

#[test]
fn a_file_for_another_tool_loads_with_warnings() {
    let resolved = load(FROM_MIRRORD, Format::Json);
    let warned: Vec<&str> = resolved
        .warnings
        .problems()
        .iter()
        .inspect(|problem| assert_eq!(problem.severity(), Severity::Warning))
        .map(|problem| problem.key.as_str())
        .collect();
    assert_eq!(
        warned.join(" "),
        "agent.ttl feature.env.load_from_process feature.fs.readonly_file_buffer \
         feature.network.ipv6 feature.copy_target feature.split_queues \
         sip_binaries telemetry internal_proxy"
    );
}

#[test]
fn examples_are_valid_by_the_schema() {
    let schema: serde_json::Value = serde_json::from_str(&schema_text()).unwrap();
    for (text, format) in COMPLETE.into_iter().chain([(FROM_MIRRORD, Format::Json)]) {
        let value = as_json(text, format);
        let errors = violations(&schema, &value);
        assert!(errors.is_empty(), "{format}: {errors:?}");
    }
}

#[test]
fn the_schema_is_strict() {
    let schema: serde_json::Value = serde_json::from_str(&schema_text()).unwrap();
    for text in [
        "evn: {}",
        "feature: {evn: {}}",
        "feature: {env: 5}",
        "feature: {env: {include: 5}}",
        "feature: {env: {include: [5]}}",
        "feature: {env: {override: {A: []}}}",
        "feature: {fs: wirte}",
        "feature: {fs: {mode: wirte}}",
        "feature: {network: {outgoing: {filter: {local: [], remote: []}}}}",
        "feature: {network: {incoming: stael}}",
        "feature: {network: {incoming: {ports: [0]}}}",
        "feature: {network: {incoming: {ports: [65536]}}}",
        "feature: {network: {incoming: {ports: ['x', 80]}}}",
        "feature: {network: {incoming: {port_mapping: [[80]]}}}",
        "feature: {network: {incoming: {port_mapping: [[80, 81, 82]]}}}",
        "feature: {network: {incoming: {http_filter: {all_of: []}}}}",
        "feature: {network: {incoming: {http_filter: {all_of: [{}]}}}}",
        "feature: {network: {incoming: {http_filter: {header: x}}}}",
        "target: {path: {pods: x}}",
        "skip_build_tools: 'yes'",
        "agent: {startup_timeout: soon}",
        "agent: {image_pull_policy: Sometimes}",
        "agent: {image_pull_secrets: [registry]}",
        "agent: {tolerations: [{keys: gpu}]}",
    ] {
        let value = as_json(text, Format::Yaml);
        assert!(!violations(&schema, &value).is_empty(), "{text}");
        assert!(verify("test", text, Format::Yaml).has_errors(), "{text}");
    }
}

#[test]
fn the_committed_schema_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas/standin.schema.json");
    let committed = std::fs::read_to_string(path).unwrap();
    assert!(committed == schema_text(), "run `cargo xtask generate`");
}

fn as_json(text: &str, format: Format) -> serde_json::Value {
    match format {
        // Other JSON parsers do not support the comment.
        Format::Json => {
            let lines = text.lines().filter(|line| !line.trim().starts_with("//"));
            let text: String = lines.collect::<Vec<_>>().join("\n");
            let text = text
                .replace(",\n      }", "\n      }")
                .replace(",\n    }", "\n    }");
            serde_json::from_str(&text).unwrap()
        }
        Format::Yaml => serde_saphyr::from_str(text).unwrap(),
        Format::Toml => toml::from_str(text).unwrap(),
    }
}
