//! The `magic` settings, with the tools that they are for.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{ProcessOutput, Standin};

const TOKEN_FILE: &str = "/var/run/secrets/eks.amazonaws.com/serviceaccount/token";

/// A fake of AWS for a service with a role, as in an EKS cluster: only the service can reach it, and the token of the role is
/// on a volume of the service. The fake is the target itself.
struct Aws(Child);

impl Aws {
    fn start(tools: &Path) -> Self {
        let script = "ip link set lo up && mount -t tmpfs tmpfs /run && mkdir -p \"$(dirname $AWS_WEB_IDENTITY_TOKEN_FILE)\" \
            && echo proof >$AWS_WEB_IDENTITY_TOKEN_FILE && exec python3 -m moto.server --port 5000";
        let mut command = Command::new("unshare");
        let mut child = command
            .args(["--net", "--mount", "sh", "-c", script])
            .env_clear()
            .env("PATH", env::var_os("PATH").unwrap())
            .env("PYTHONPATH", tools)
            .env("AWS_ENDPOINT_URL", "http://127.0.0.1:5000")
            .env("AWS_DEFAULT_REGION", "eu-central-1")
            .env("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/checkout")
            .env("AWS_ROLE_SESSION_NAME", "pod")
            .env("AWS_WEB_IDENTITY_TOKEN_FILE", TOKEN_FILE)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let target = Self(child);
        let mut line = String::new();
        while !line.contains("Running on") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "moto ended");
        }
        // It logs each request, so its output must be read.
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        target
    }
}

impl Drop for Aws {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tools() -> PathBuf {
    match env::var_os("STANDIN_AWS_TOOLS") {
        Some(tools) => PathBuf::from(tools),
        None => panic!("`cargo xtask test` installs the AWS CLI and sets STANDIN_AWS_TOOLS"),
    }
}

/// A developer with a default profile and credentials.
fn developer(tools: &Path) -> Standin {
    let standin = Standin::new();
    let home = standin.path("home");
    let standin = standin
        .with("HOME", &home)
        .with("AWS_PROFILE", "work")
        .with("PYTHONPATH", tools);
    standin.write(
        "home/.aws/config",
        "[profile work]\nrole_arn = arn:aws:iam::123456789012:role/developer\nrole_session_name = me\nsource_profile = keys\n",
    );
    standin.write(
        "home/.aws/credentials",
        "[keys]\naws_access_key_id = AKIADEVELOPER\naws_secret_access_key = secret\n",
    );
    standin
}

fn arn(ended: &ProcessOutput) -> String {
    ended.expect(0);
    let response: Value = serde_json::from_str(&ended.stdout).unwrap();
    response["Arn"].as_str().unwrap().to_owned()
}

#[test]
#[ignore = "needs root"]
fn the_aws_cli_acts_as_the_target_and_not_as_the_developer() {
    let tools = tools();
    let aws = Aws::start(&tools);
    let standin = developer(&tools);
    let target = format!("process/{}", aws.0.id());
    let run = |options: &[&str], script: &str| {
        let command = standin.session(&target, options, script).output();
        ProcessOutput::from(command.unwrap())
    };
    let who = "python3 -m awscli sts get-caller-identity --output json";
    let theirs = "arn:aws:sts::123456789012:assumed-role/checkout/pod";
    assert_eq!(arn(&run(&[], who)), theirs);
    // The same if all other files are local.
    let token = standin.write("token", "proof");
    let token = format!("AWS_WEB_IDENTITY_TOKEN_FILE={}", token.display());
    assert_eq!(
        arn(&run(&["--no-fs", "--override-env", &token], who)),
        theirs
    );

    // Without magic, the developer's profile has precedence.
    let off = standin.write("off.yaml", "magic: {aws: 'false'}");
    let off = ["-f", off.to_str().unwrap()];
    let own = "arn:aws:sts::123456789012:assumed-role/developer/me";
    assert_eq!(arn(&run(&off, who)), own);

    // The folder exists, is empty and writable, and is removed with the session.
    let script = "cd ~/.aws && pwd && ls -A && aws() { python3 -m awscli \"$@\"; } && aws configure set region mars-1 \
        && aws configure get region && ls -A && readlink -f /proc/self/fd/5 5<config";
    let written = run(&["-q"], script);
    written.expect(0);
    let home = standin.path("home/.aws");
    let expected = format!("{0}\nmars-1\nconfig\n{0}/config\n", home.display());
    assert_eq!(written.stdout, expected);
    let config = fs::read_to_string(home.join("config")).unwrap();
    assert!(!config.contains("mars-1"), "{config}");
}

#[test]
fn print_config_shows_the_settings_of_magic() {
    let standin = Standin::new().with("HOME", "/users/me");
    let shown = standin.run(["exec", "-t", "process/1", "--print-config"]);
    shown.expect(0);
    let line = |key: &str| {
        let mut lines = shown.stdout.lines();
        lines.find(|line| line.starts_with(key)).unwrap().to_owned()
    };
    let mapping = line("feature.fs.mapping");
    assert!(mapping.contains(r"^/users/me/\.aws(/|$)"), "{mapping}");
    assert!(mapping.ends_with("added by magic.aws"), "{mapping}");
    let unset = line("feature.env.unset_local");
    assert!(
        unset.ends_with("added by magic.aws, magic.proxy"),
        "{unset}"
    );
}

#[test]
fn a_session_without_a_target_has_no_magic() {
    let standin = Standin::new().with("HOME", "/users/me");
    let shown = standin.run(["exec", "-t", "targetless", "--print-config"]);
    shown.expect(0);
    assert!(!shown.stdout.contains("added by"), "{}", shown.stdout);
    for key in ["feature.env.enabled", "magic.aws", "magic.proxy"] {
        let line = shown.stdout.lines().find(|line| line.starts_with(key));
        let line = line
            .unwrap()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert_eq!(line, format!("{key} false the session has no target"));
    }
}
