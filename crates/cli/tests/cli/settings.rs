//! Which settings are used, and how to print them.

use std::path::Path;

use crate::support::{Standin, Target};

/// Checks the line of a key in the output of `--print-config`.
#[track_caller]
fn check(standin: &Standin, options: &[&str], key: &str, value: &str, origin: &str) {
    let printed = standin.run(["exec", "--print-config"].iter().chain(options));
    printed.expect(0);
    let line = printed
        .stdout
        .lines()
        .find(|line| line.split_whitespace().next() == Some(key));
    let line = line.unwrap_or_else(|| panic!("{key} is missing: {}", printed.stdout));
    let words: Vec<&str> = line.split_whitespace().skip(1).collect();
    assert_eq!(words, [value, origin], "{line}");
}

#[test]
fn flags_override_variables_files_and_defaults() {
    let key = "feature.fs.mode";
    let standin = Standin::new();
    check(&standin, &[], key, "\"read\"", "default");
    standin.write("standin.yaml", "feature:\n  fs: write\n");
    check(&standin, &[], key, "\"write\"", "standin.yaml:2:7");
    let standin = standin.with("STANDIN_FS_MODE", "localwithoverrides");
    check(
        &standin,
        &[],
        key,
        "\"localwithoverrides\"",
        "STANDIN_FS_MODE",
    );
    check(
        &standin,
        &["--fs-mode", "local"],
        key,
        "\"local\"",
        "--fs-mode",
    );
    check(&standin, &["--no-fs"], key, "\"local\"", "--no-fs");
}

#[test]
fn every_flag_sets_its_key() {
    let standin = Standin::new();
    #[rustfmt::skip] // A table is read by its columns.
    let table: [(&[&str], &str, &str, &str); 24] = [
        (&["-t", "process/1"],                           "target.path",                  "\"process/1\"",   "--target"),
        (&["--env-include", "A*,B"],                     "feature.env.include",          "[\"A*\",\"B\"]",  "--env-include"),
        (&["--env-exclude", "A", "--env-exclude", "B"],  "feature.env.exclude",          "[\"A\",\"B\"]",   "--env-exclude"),
        (&["--override-env-vars-exclude", "A"],          "feature.env.exclude",          "[\"A\"]",         "--env-exclude"),
        (&["--override-env", "A=hunter2"],               "feature.env.override.A",       "(hidden)",        "--override-env"),
        (&["--unset-env", "A"],                          "feature.env.unset",            "[\"A\"]",         "--unset-env"),
        (&["--env-file", ".env"],                        "feature.env.env_file",         "\".env\"",        "--env-file"),
        (&["--no-env"],                                  "feature.env.enabled",          "false",           "--no-env"),
        (&["--steal"],                                   "feature.network.incoming.mode", "\"steal\"",     "--steal"),
        (&["--tcp-steal"],                               "feature.network.incoming.mode", "\"steal\"",     "--steal"),
        (&["--no-incoming"],                             "feature.network.incoming.mode", "\"off\"",       "--no-incoming"),
        (&["--header-filter", "x-user:alice"],           "feature.network.incoming.http_filter.header_filter", "\"x-user:alice\"", "--header-filter"),
        (&["--path-filter", "^/api"],                    "feature.network.incoming.http_filter.path_filter", "\"^/api\"", "--path-filter"),
        (&["--port-mapping", "8081:80,9091:90"],         "feature.network.incoming.port_mapping", "[[8081,80],[9091,90]]", "--port-mapping"),
        (&["--ignore-ports", "9229"],                    "feature.network.incoming.ignore_ports", "[9229]", "--ignore-ports"),
        (&["--on-concurrent-steal", "override"],         "feature.network.incoming.on_concurrent_steal", "\"override\"", "--on-concurrent-steal"),
        (&["--no-outgoing"],                             "feature.network.outgoing.tcp", "false",           "--no-outgoing"),
        (&["--no-outgoing"],                             "feature.network.outgoing.udp", "false",           "--no-outgoing"),
        (&["--no-tcp-outgoing"],                         "feature.network.outgoing.tcp", "false",           "--no-tcp-outgoing"),
        (&["--no-udp-outgoing"],                         "feature.network.outgoing.udp", "false",           "--no-udp-outgoing"),
        (&["--no-dns"],                                  "feature.network.dns.enabled",  "false",           "--no-dns"),
        (&["--no-remote-dns"],                           "feature.network.dns.enabled",  "false",           "--no-dns"),
        (&["--no-hostname"],                             "feature.hostname",             "false",           "--no-hostname"),
        (&["--skip-processes", "make,sh"],               "skip_processes",               "[\"make\",\"sh\"]", "--skip-processes"),
    ];
    for (options, key, value, origin) in table {
        check(&standin, options, key, value, origin);
    }
    standin
        .run(["exec", "--print-config", "--fs-mode", "raed"])
        .expect(125)
        .expect_stderr(&["unknown value `raed`", "did you mean `read`?"]);
}

#[test]
fn a_file_is_found_and_named() {
    let standin = Standin::new();
    standin.write(
        ".mirrord/mirrord.json",
        r#"{"telemetry": false, "feature": {"hostname": false}}"#,
    );
    let printed = standin.run(["exec", "--print-config"]);
    printed.expect(0).expect_stderr(&[
        "standin: settings from .mirrord/mirrord.json\n",
        "standin: .mirrord/mirrord.json:1:2: `telemetry` has no effect: ",
    ]);
    check(
        &standin,
        &[],
        "feature.hostname",
        "false",
        ".mirrord/mirrord.json:1:46",
    );
    standin.write("standin.toml", "skip_build_tools = false\n");
    check(&standin, &[], "feature.hostname", "true", "default");
    check(
        &standin,
        &[],
        "skip_build_tools",
        "false",
        "standin.toml:1:20",
    );
    let named = standin.write("elsewhere.json", r#"{"skip_build_tools": true}"#);
    let standin = standin.with("STANDIN_CONFIG_FILE", &named);
    let printed = standin.run(["exec", "--print-config"]);
    printed.expect_stderr(&["elsewhere.json (STANDIN_CONFIG_FILE)"]);
    check(
        &standin,
        &["-f", "standin.toml"],
        "skip_build_tools",
        "false",
        "standin.toml:1:20",
    );
    let standin = standin.with("STANDIN_CONFIG_FILE", "/nowhere.json");
    standin
        .run(["exec", "--print-config"])
        .expect(125)
        .expect_stderr(&["/nowhere.json, which does not exist"]);
}

#[test]
fn the_named_file_or_that_of_the_folder_is_verified() {
    let standin = Standin::new();
    standin
        .run(["verify-config"])
        .expect(125)
        .expect_stderr(&["no configuration file here"]);
    standin.write("standin.json", r#"{"featur": {}}"#);
    let report = standin.run(["verify-config"]);
    report.expect(1);
    assert!(
        report.stdout.contains("did you mean `feature`?"),
        "{}",
        report.stdout
    );
    assert_eq!(report.stdout.matches("1 error, 0 warnings").count(), 1);
    let fine = standin.write("fine.yaml", "feature: {}\n");
    let report = standin.run([Path::new("verify-config"), &fine]);
    report.expect(0);
    assert_eq!(report.stdout, "0 errors, 0 warnings\n");
}

#[test]
fn the_error_for_a_variable_without_a_value_explains_the_format() {
    for text in ["SHOP", "=x"] {
        Standin::new()
            .run(["exec", "--print-config", "--override-env", text])
            .expect(2)
            .expect_stderr(&["write NAME=VALUE", "--unset-env"]);
    }
}

#[test]
fn settings_reach_the_program() {
    let target = Target::with(&[
        ("SHOP".as_ref(), "target".as_ref()),
        ("DROPPED".as_ref(), "x".as_ref()),
    ]);
    let standin = Standin::new();
    standin.write("more.env", "FROM_FILE=file\n");
    let options = [
        "--override-env",
        "SHOP=flag",
        "--env-exclude",
        "DROPPED",
        "--env-file",
        "more.env",
    ];
    let script = "echo $SHOP-$FROM_FILE-$DROPPED";
    let ended = crate::support::ProcessOutput::from(
        standin
            .session(&target.name(), &options, script)
            .output()
            .unwrap(),
    );
    ended.expect(0);
    assert_eq!(ended.stdout, "flag-file-\n");
}
