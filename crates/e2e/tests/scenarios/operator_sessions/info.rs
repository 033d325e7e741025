//! Information about a session through the operator on the developer's machine.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use e2e::{Scenario, TestNamespace, until};
use serde_json::{Value, json};

use super::super::cluster_sessions::succeed;
use super::super::support::standin_for;
use super::Shell;

/// The local session has the operator's id, and reports the reason for each setting. The target's volumes are read from
/// it wherever they are mounted.
pub(super) async fn local_info_has_the_same_id(
    scenario: &Scenario<'_>,
    shop: &TestNamespace,
    id: &str,
    session: &mut Shell,
) -> Result<()> {
    let settings = session.run("echo $(cat /opt/settings/settings)").await?;
    ensure!(settings == "color=blue", "{settings:?}");
    let query = |what: &str| -> Result<Value> {
        let mut standin = standin_for(scenario, shop)?;
        let output = succeed(standin.args(["session", id, what, "--json"]))?;
        Ok(serde_json::from_str(&output.stdout)?)
    };
    let info = query("info")?;
    ensure!(info["session_id"] == id, "{info}");
    ensure!(info["is_operator"] == true, "{info}");
    let cluster = shop.cluster.client.name();
    ensure!(info["clusters"] == json!([cluster]), "{info}");
    let config = query("config")?;
    let mut rows = config.as_array().into_iter().flatten();
    let volumes = rows
        .find(|row| row["key"] == "feature.fs.read_only")
        .with_context(|| config.to_string())?;
    ensure!(
        volumes["reason"] == "added by magic.auto_mount",
        "{volumes}"
    );
    let value = volumes["value"].to_string();
    ensure!(value.contains("/opt/settings"), "{volumes}");
    the_page_shows_the_operator(scenario, shop).await
}

/// `standin ui` asks the cluster for its operator.
async fn the_page_shows_the_operator(scenario: &Scenario<'_>, shop: &TestNamespace) -> Result<()> {
    let mut standin = standin_for(scenario, shop)?;
    standin.args(["ui", "--no-open"]).stdout(Stdio::piped());
    let mut ui = KillOnDrop(standin.spawn()?);
    let mut line = String::new();
    let stdout = ui.0.stdout.take().context("no output")?;
    BufReader::new(stdout).read_line(&mut line)?;
    let url = line.trim().rsplit(' ').next().unwrap_or_default();
    let (origin, token) = url.split_once("/?token=").context("no token")?;
    let bearer = format!("Authorization: Bearer {token}");
    let address = format!("{origin}/api/version");
    let expected = json!({
        "status": "running",
        "cluster": shop.cluster.client.name(),
        "version": env!("CARGO_PKG_VERSION"),
    });
    until("the page to show the operator", async || {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--noproxy", "*", "--header"]);
        let output = succeed(curl.args([&bearer, &address]))?;
        let version: Value = serde_json::from_str(&output.stdout)?;
        Ok((version["operator"] == expected).then_some(()))
    })
    .await
}

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
