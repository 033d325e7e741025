use config::{
    EnvFile, EnvRules, FileRules, IncomingRules, Layers, OutgoingRules, Protocol, Surroundings,
};
use config::{Format, Settings, Style, VARIABLES, verify};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::load;

const COMPLETE: [(&str, Format); 3] = [
    (include_str!("../examples/complete.json"), Format::Json),
    (include_str!("../examples/complete.yaml"), Format::Yaml),
    (include_str!("../examples/complete.toml"), Format::Toml),
];

/// Runs all operations on a text. The results do not matter, but none may panic.
fn exercise(text: &str, format: Format) {
    let report = verify("any", text, format);
    report.render(Style::Plain);
    report.render(Style::Colored);
    if let Ok(resolved) = Layers::new().file("any", text, format).resolve() {
        resolved.effective();
        survives(&resolved.settings);
        decide(&resolved.settings);
    }
}

/// Rules may be rejected as too large, and must otherwise decide.
fn decide(settings: &Settings) {
    let feature = &settings.feature;
    if let Ok(rules) = FileRules::new(&feature.fs, &Surroundings::default()) {
        for path in ["", "/", "/etc/x", "/srv/dev/x", "//", "x"] {
            rules.choose(path.as_bytes(), false);
        }
    }
    if let Ok(rules) = EnvRules::new(&feature.env, &EnvFile::default()) {
        rules.apply(vec![(b"A".to_vec(), b"b".to_vec())], Vec::new());
    }
    let rules = IncomingRules::new(&feature.network.incoming);
    if let Some(port) = rules.choose(([0, 0, 0, 0], 80).into()) {
        rules.filter(80, port);
    }
    if let Ok(rules) = OutgoingRules::new(&feature.network.outgoing) {
        rules.choose(Protocol::Tcp, ([1, 2, 3, 4], 5).into(), &["a.b"]);
        rules.choose_unix(b"/x");
    }
}

fn survives(settings: &Settings) {
    let json = serde_json::to_string(settings).unwrap();
    let yaml = serde_saphyr::to_string(settings).unwrap();
    let toml = toml::to_string(settings).unwrap();
    for (text, format) in [
        (json, Format::Json),
        (yaml, Format::Yaml),
        (toml, Format::Toml),
    ] {
        assert_eq!(&load(&text, format).settings, settings, "{text}");
    }
}

#[test]
fn defaults_survive() {
    survives(&Settings::default());
    for (text, format) in COMPLETE {
        survives(&load(text, format).settings);
    }
}

/// Pieces whose random combinations are similar to config files.
fn piece() -> impl Strategy<Value = String> {
    let fragment = select(vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        ": ",
        "=",
        "\n",
        "\n  ",
        "\n    ",
        "- ",
        "\"",
        "'",
        "#",
        "//",
        "/*",
        "*/",
        "|",
        ">",
        "&a ",
        "*a",
        "!!str ",
        "---\n",
        "? ",
        "~",
        "null",
        "true",
        "false",
        "1",
        "-1.5e3",
        "\\",
        "\\u00e9",
        "\t",
        "\r\n",
        "{{",
        "\u{feff}",
        "é",
        "\u{0}",
        "\u{1f600}",
        "\"feature\"",
        "feature",
        "env",
        "fs",
        "network",
        "outgoing",
        "dns",
        "filter",
        "local",
        "remote",
        "mode",
        "read",
        "include",
        "override",
        "mapping",
        "target",
        "pod/x",
        "process/1",
        "tcp://",
        "10.0.0.0/8",
        ":53",
        "[::1]",
        "(",
        "[a-z]+$",
        "operator",
        "incoming",
        "port_mapping",
        "[[1, 2]]",
        "http_filter",
        "all_of",
        "header",
        "[feature.env]",
        "<<",
    ])
    .prop_map(ToOwned::to_owned);
    prop_oneof![8 => fragment, 1 => any::<String>(), 1 => "\\PC{0,8}"]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_handled(text in any::<String>()) {
        for format in Format::ALL {
            exercise(&text, format);
        }
    }

    #[test]
    fn any_pieces_are_handled(pieces in prop::collection::vec(piece(), 0..60)) {
        let text = pieces.concat();
        for format in Format::ALL {
            exercise(&text, format);
        }
    }

    /// A valid file with a few pieces removed or inserted.
    #[test]
    fn damaged_files_are_handled(
        file in select(COMPLETE.to_vec()),
        damages in prop::collection::vec((any::<Index>(), 0usize..12, prop::option::of(piece())), 1..4),
    ) {
        let (text, format) = file;
        let mut text = text.to_owned();
        for (at, length, piece) in damages {
            let start = text.floor_char_boundary(at.index(text.len() + 1));
            let end = text.ceil_char_boundary((start + length).min(text.len()));
            text.replace_range(start..end, &piece.unwrap_or_default());
        }
        exercise(&text, format);
    }

    /// Settings that are generated key by key, with values that have to be quoted.
    #[test]
    fn any_settings_survive(
        values in prop::collection::vec("\\PC{0,12}|[;:#'\"\\\\ \n\t{}\\[\\]&*!|>%@`-]{1,6}|true|null|1\\.10|~|", 6),
        booleans in prop::collection::vec(any::<bool>(), 6),
        mode in select(vec!["local", "localwithoverrides", "read", "write"]),
        incoming in select(vec!["mirror", "steal", "off"]),
        port in 1u16..,
        address in select(vec!["tcp://10.0.0.0/8:5432", "a.b", ":53", "[fd00::/8]:443", "any://", "1.2.3.4"]),
    ) {
        let text = serde_json::json!({
            "target": { "namespace": values[0] },
            "feature": {
                "env": {
                    "enabled": booleans[0],
                    "include": [values[1], values[2]],
                    "override": { values[3].as_str(): values[4], "A": values[5] },
                    "env_file": values[0],
                },
                "fs": { "mode": mode, "mapping": { "z": values[1], "a(b)?": values[2] }, "local": ["x{2}", "\\.y$"] },
                "network": {
                    "incoming": {
                        "mode": incoming, "ports": [port], "port_mapping": [[port, 8080]],
                        "http_filter": { "any_of": [{ "header": "^x: .*(?!y)$" }, { "body": "json", "query": "$.a", "matches": values[0] }] },
                        "response_timeout": "3s",
                    },
                    "outgoing": { "tcp": booleans[1], "udp": booleans[2], "filter": { "remote": [address, "db"] } },
                    "dns": { "enabled": booleans[3], "filter": { "local": address } },
                },
                "hostname": booleans[4],
            },
            "skip_processes": [values[4]],
            "skip_build_tools": booleans[5],
        });
        if let Ok(resolved) = Layers::new().file("any", &text.to_string(), Format::Json).resolve() {
            survives(&resolved.settings);
        }
    }

    #[test]
    fn any_variable_is_handled(index in any::<Index>(), value in "\\PC{0,20}|true|pod/x|a;b") {
        let variable = index.get(VARIABLES);
        let layers = Layers::new().variables([(variable.name, value.as_str())], &[]);
        if let Err(report) = layers.resolve() {
            report.render(Style::Plain);
        }
    }

    #[test]
    fn any_env_file_is_handled(text in any::<String>(), lines in "([A-Z]{0,2}[= '\"\\\\#\n]{0,3}){0,20}") {
        let _ = EnvFile::parse(&text);
        let _ = EnvFile::parse(&lines);
    }
}
