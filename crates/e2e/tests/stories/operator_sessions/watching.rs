//! What a session through the operator tells about itself on the developer's machine.

use anyhow::{Context as _, Result, ensure};
use e2e::{Stage, Story};
use serde_json::{Value, json};

use super::super::cluster_sessions::succeed;
use super::super::surroundings::standin_for;
use super::Shell;

/// It is known there by the name that the operator has for it, and says of each setting why it is so. Volumes of the target
/// are read from it wherever they are mounted.
pub(super) async fn it_is_watched_by_the_same_name(
    story: &Story<'_>,
    shop: &Stage,
    id: &str,
    session: &mut Shell,
) -> Result<()> {
    let settings = session.ask("echo $(cat /opt/settings/settings)").await?;
    ensure!(settings == "color=blue", "{settings:?}");
    let ask = |what: &str| -> Result<Value> {
        let mut standin = standin_for(story, shop)?;
        let said = succeed(standin.args(["session", id, what, "--json"]))?;
        Ok(serde_json::from_str(&said.stdout)?)
    };
    let info = ask("info")?;
    ensure!(info["session_id"] == id, "{info}");
    ensure!(info["is_operator"] == true, "{info}");
    let cluster = shop.cluster.client.name();
    ensure!(info["clusters"] == json!([cluster]), "{info}");
    let config = ask("config")?;
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
