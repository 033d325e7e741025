//! Information about a session through the operator on the developer's machine.

use anyhow::{Context as _, Result, ensure};
use e2e::{Scenario, TestNamespace};
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
    Ok(())
}
