//! How many people use the operator: who was seen on which day, in a ConfigMap that all replicas share.
//!
//! Nothing waits for it, and nothing depends on it. Names are not kept, only digests by which they are told apart, and these
//! for thirty days.

use std::collections::BTreeMap;

use api::operator::Statistics;
use api::session::SessionOwner;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use crate::background::Background;
use crate::error::{Doing as _, Error, Result, chain};
use crate::settings::Settings;

/// The chart makes it empty, so that the operator needs no right to make others.
const CONFIG_MAP: &str = "mirrord-operator-users";
/// So many people may be seen before the first is written down. Whoever is lost is seen again.
const WAITING: usize = 256;
/// Of a digest. More would only make the object larger.
const KEY_BYTES: usize = 16;
const MONTH_DAYS: i64 = 30;

/// When each user was last seen.
type Days = BTreeMap<String, Date>;

/// Whoever has a session is told to this one.
pub(crate) struct Users {
    /// From whoever looks after sessions to the writer: whom it has seen.
    seen: mpsc::Sender<String>,
}

impl Users {
    pub(crate) fn write_down(client: Client, settings: &Settings, background: &Background) -> Self {
        let (seen, news) = mpsc::channel(WAITING);
        let maps = Api::namespaced(client, &settings.namespace);
        background.spawn("users", keep_writing(maps, news));
        Self { seen }
    }

    /// Costs nothing for somebody who was seen today.
    pub(crate) fn saw(&self, owner: &SessionOwner) {
        let _ = self.seen.try_send(key(&owner.k8s_username));
    }
}

/// None, where nobody has written anything down that can be read.
pub(crate) async fn statistics(
    client: &Client,
    settings: &Settings,
    now: Timestamp,
) -> Option<Statistics> {
    let maps = Api::namespaced(client.clone(), &settings.namespace);
    match read(&maps).await {
        Ok(days) => Some(counted(&days, day(now))),
        Err(error) => {
            tracing::debug!(error = chain(&error), "users are not counted");
            None
        }
    }
}

async fn keep_writing(maps: Api<ConfigMap>, mut news: mpsc::Receiver<String>) {
    let mut known = Days::new();
    while let Some(key) = news.recv().await {
        let today = day(Timestamp::now());
        if known.get(&key) == Some(&today) {
            continue;
        }
        match write(&maps, &key, today).await {
            Ok(days) => known = days,
            // Seen again with the next look at the session.
            Err(error) => tracing::debug!(error = chain(&error), "a user is not counted"),
        }
    }
}

async fn read(maps: &Api<ConfigMap>) -> Result<Days> {
    let map = maps.get(CONFIG_MAP).await;
    let map = map.doing(format!("read the ConfigMap {CONFIG_MAP}"))?;
    Ok(days(map.data.unwrap_or_default()))
}

/// Returns what is written there then.
async fn write(maps: &Api<ConfigMap>, key: &str, today: Date) -> Result<Days, Error> {
    let mut days = read(maps).await?;
    if let Some(patch) = patch(&days, key, today) {
        // Replicas write different keys, or the same day.
        let patch = json!({ "data": patch });
        let patched = maps
            .patch(CONFIG_MAP, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        patched.doing(format!("write the ConfigMap {CONFIG_MAP}"))?;
    }
    days.insert(key.to_owned(), today);
    Ok(days)
}

fn day(now: Timestamp) -> Date {
    now.to_zoned(TimeZone::UTC).date()
}

fn key(name: &str) -> String {
    let digest = Sha256::digest(name);
    let bytes = digest.iter().take(KEY_BYTES);
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// What somebody else has written there is not ours.
fn days(data: BTreeMap<String, String>) -> Days {
    let days = data.into_iter();
    days.filter_map(|(key, day)| Some((key, day.parse().ok()?)))
        .collect()
}

/// What is to be written when somebody is seen, and whom to forget with it. None, when it is there already.
fn patch(days: &Days, key: &str, today: Date) -> Option<Value> {
    if days.get(key) == Some(&today) {
        return None;
    }
    let forgotten = days.iter().filter(|(_, day)| !is_in_month(**day, today));
    let mut patch: BTreeMap<&str, Option<String>> =
        forgotten.map(|(key, _)| (key.as_str(), None)).collect();
    patch.insert(key, Some(today.to_string()));
    Some(json!(patch))
}

fn counted(days: &Days, today: Date) -> Statistics {
    let count = |is_counted: &dyn Fn(Date) -> bool| {
        let counted = days.values().filter(|day| is_counted(**day)).count();
        u32::try_from(counted).unwrap_or(u32::MAX)
    };
    Statistics {
        dau: count(&|day| day >= today),
        mau: count(&|day| is_in_month(day, today)),
    }
}

/// Today is one of its days.
fn is_in_month(day: Date, today: Date) -> bool {
    // There is no such day only at the beginning of all calendars.
    today
        .checked_sub(MONTH_DAYS.days())
        .is_ok_and(|before| day > before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(days: &[(&str, &str)]) -> Days {
        let days = days
            .iter()
            .map(|(key, day)| ((*key).to_owned(), day.parse().unwrap()));
        days.collect()
    }

    fn today() -> Date {
        "2026-03-31".parse().unwrap()
    }

    #[test]
    fn people_are_counted_for_a_day_and_for_thirty() {
        let days = seen(&[
            ("a", "2026-03-31"),
            ("b", "2026-03-30"),
            ("c", "2026-03-02"),
            ("d", "2026-03-01"),
            // By a clock that is ahead of ours.
            ("e", "2026-04-01"),
        ]);
        assert_eq!(counted(&days, today()), Statistics { dau: 2, mau: 4 });
        assert_eq!(
            counted(&Days::new(), today()),
            Statistics { dau: 0, mau: 0 }
        );
    }

    #[test]
    fn whoever_is_seen_is_written_once_a_day_and_others_are_forgotten() {
        let days = seen(&[
            ("a", "2026-03-31"),
            ("b", "2026-03-30"),
            ("d", "2026-03-01"),
        ]);
        assert_eq!(patch(&days, "a", today()), None);
        let again = json!({"b": "2026-03-31", "d": null});
        assert_eq!(patch(&days, "b", today()), Some(again));
        let back = json!({"d": "2026-03-31"});
        assert_eq!(patch(&days, "d", today()), Some(back));
    }

    #[test]
    fn a_name_is_a_key_of_a_config_map_and_not_kept() {
        let found = key("system:serviceaccount:shop:anna");
        assert_eq!(found.len(), 32);
        assert!(found.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(found, key("system:serviceaccount:shop:bert"));
        let others = [("README".to_owned(), "not a day".to_owned())];
        assert_eq!(days(others.into()), Days::new());
    }
}
