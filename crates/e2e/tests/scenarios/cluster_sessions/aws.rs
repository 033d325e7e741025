//! AWS tools in a session with a pod that has a role.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use e2e::{Scenario, TestNamespace, environment, until};
use tempfile::TempDir;

use super::super::support::{exec_for, process_of_pod};
use super::succeed;

const ROLE_OF_THE_POD: &str = "arn:aws:sts::123456789012:assumed-role/ledger/pod";
const ROLE_OF_THE_DEVELOPER: &str = "arn:aws:sts::123456789012:assumed-role/developer/me";

/// The role of the pod has precedence over everything that the developer has set, unless magic is off.
pub(crate) async fn aws_tools_have_the_role_of_the_pod(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    namespace.apply(include_str!("../../../fixtures/role.yaml"))?;
    namespace.kubectl(&["rollout", "status", "deployment/ledger", "--timeout=120s"])?;
    let tools = tools()?;
    let _aws = Aws::start(scenario, &namespace, &tools).await?;
    let developer = Developer::new()?;

    let mut session = developer.session(scenario, &namespace, &tools)?;
    session
        .env("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9")
        .env("AWS_EC2_METADATA_DISABLED", "true");
    ensure!(role(&mut session)? == ROLE_OF_THE_POD);

    let mut session = developer.session(scenario, &namespace, &tools)?;
    session.arg("-f").arg(developer.without_magic()?);
    ensure!(role(&mut session)? == ROLE_OF_THE_DEVELOPER);
    Ok(())
}

/// The role with which the AWS CLI sends requests.
fn role(session: &mut Command) -> Result<String> {
    let cli = ["--", "python3", "-m", "awscli", "sts"];
    session
        .args(cli)
        .args(["get-caller-identity", "--query=Arn"]);
    let output = succeed(session.arg("--output=text"))?;
    Ok(output.stdout.trim().to_owned())
}

fn tools() -> Result<PathBuf> {
    let folder = env::var_os(environment::AWS_TOOLS);
    let folder = folder.context("`cargo xtask test` installs the AWS CLI and names its folder")?;
    Ok(PathBuf::from(folder))
}

/// A fake of AWS in the network namespace of a pod.
struct Aws(Child);

impl Aws {
    async fn start(
        scenario: &Scenario<'_>,
        namespace: &TestNamespace,
        tools: &Path,
    ) -> Result<Self> {
        let names = "--output=jsonpath={.items[*].metadata.name}";
        let pod = namespace.kubectl(&["get", "pods", "--selector=app=ledger", names])?;
        let process = process_of_pod(scenario.lab()?, pod.trim())?.to_string();
        let inside = |command: &[&str]| {
            let mut nsenter = Command::new("nsenter");
            nsenter.args(["--target", &process, "--net"]).args(command);
            nsenter.stdin(Stdio::null());
            nsenter
        };
        let mut server = inside(&["python3", "-m", "moto.server", "--port=5000"]);
        server.env("PYTHONPATH", tools).stderr(Stdio::null());
        let aws = Self(server.stdout(Stdio::null()).spawn()?);
        until("the fake of AWS to respond", async || {
            let mut request = inside(&["curl", "--silent", "http://127.0.0.1:5000/"]);
            Ok(Some(lab::output_of(&mut request)?))
        })
        .await?;
        Ok(aws)
    }
}

impl Drop for Aws {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A developer with a profile and credentials.
struct Developer {
    home: TempDir,
}

impl Developer {
    fn new() -> Result<Self> {
        let home = tempfile::tempdir()?;
        let folder = home.path().join(".aws");
        fs::create_dir(&folder)?;
        fs::write(
            folder.join("config"),
            "[profile work]\nrole_arn = arn:aws:iam::123456789012:role/developer\nrole_session_name = me\nsource_profile = keys\n",
        )?;
        fs::write(
            folder.join("credentials"),
            "[keys]\naws_access_key_id = AKIADEVELOPER\naws_secret_access_key = secret\n",
        )?;
        Ok(Developer { home })
    }

    fn session(
        &self,
        scenario: &Scenario<'_>,
        namespace: &TestNamespace,
        tools: &Path,
    ) -> Result<Command> {
        let mut session = exec_for(scenario, namespace, "deployment/ledger")?;
        session
            .env("HOME", self.home.path())
            .env("AWS_PROFILE", "work")
            .env("PYTHONPATH", tools)
            .env("STANDIN_FS_LOCAL", programs_of_this_machine(tools));
        Ok(session)
    }

    fn without_magic(&self) -> Result<PathBuf> {
        let file = self.home.path().join("standin.yaml");
        fs::write(&file, "magic: {aws: false}\n")?;
        Ok(file)
    }
}

/// The AWS CLI and Python may be in the home of this test's user. In a session with another home, they would be read at the
/// target.
fn programs_of_this_machine(tools: &Path) -> String {
    let home = env::home_dir().unwrap_or_default();
    format!("^({}|{})/", home.display(), tools.display())
}
