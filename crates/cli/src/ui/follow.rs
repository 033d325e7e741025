//! Finds sessions, and follows the events of each until it ends.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use monitor::stream::Message;
use parking_lot::Mutex;
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use tokio::sync::Notify;
use tokio::time::{interval, sleep, timeout};

use super::hub::Hub;
use crate::api::client::{Client, NoResponse};
use crate::api::folder::Folder;

/// How often the folder is listed if there is no notification of a change.
const RESCAN_INTERVAL: Duration = Duration::from_secs(5);
/// How often the info of a session is requested.
const INFO_INTERVAL: Duration = Duration::from_secs(2);
/// The delay between connection attempts to a session whose socket exists.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Follows all sessions of a folder on the runtime.
pub(super) fn start(hub: Arc<Hub>, folder: Folder) {
    tokio::spawn(async move {
        let changed = watch(&folder).inspect_err(|error| {
            tracing::debug!(%error, "inotify not available, polling the folder");
        });
        let changed = changed.ok();
        let followed: Arc<Mutex<HashSet<String>>> = Arc::default();
        loop {
            for id in folder.ids() {
                // Sessions that are followed are not connected to again, because one that was stopped accepts nothing.
                let is_new = !followed.lock().contains(&id) && !folder.remove_if_stale(&id);
                if is_new {
                    followed.lock().insert(id.clone());
                    let (hub, folder) = (Arc::clone(&hub), folder.clone());
                    let followed = Arc::clone(&followed);
                    tokio::spawn(async move {
                        follow(&hub, &folder, &id).await;
                        hub.remove(&id);
                        followed.lock().remove(&id);
                    });
                }
            }
            match &changed {
                Some(changed) => {
                    let _ = timeout(RESCAN_INTERVAL, changed.notified()).await;
                }
                None => sleep(RESCAN_INTERVAL).await,
            }
        }
    });
}

/// Notifies of changes in the folder. The receiver must list the folder to find out what has changed.
fn watch(folder: &Folder) -> std::io::Result<Arc<Notify>> {
    let watch = init(CreateFlags::CLOEXEC)?;
    let flags = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_TO;
    add_watch(&watch, folder.path(), flags)?;
    let changed = Arc::new(Notify::new());
    let notify = Arc::clone(&changed);
    // The thread reads events for the rest of this process.
    thread::spawn(move || {
        let mut events = [0_u8; 4096];
        while rustix::io::read(&watch, &mut events).is_ok_and(|count| count > 0) {
            notify.notify_one();
        }
    });
    Ok(changed)
}

/// Publishes the events of a session to the hub, until it has ended.
async fn follow(hub: &Hub, folder: &Folder, id: &str) {
    let Ok(client) = Client::new(folder, id) else {
        return;
    };
    let mut last = None;
    while folder.socket(id).exists() {
        match client.info().await {
            Ok(info) => {
                let is_supported = info.is_supported();
                hub.put(info, &client);
                // Nothing else of a session with another version of the API can be read.
                if is_supported && let Ok(events) = client.events(last).await {
                    publish(hub, &client, id, events, &mut last).await;
                    sleep(RETRY_INTERVAL).await;
                    continue;
                }
            }
            Err(_) if folder.remove_if_stale(id) => return,
            Err(error) => note_unresponsive(hub, &client, &error),
        }
        sleep(INFO_INTERVAL).await;
    }
}

fn note_unresponsive(hub: &Hub, client: &Client, error: &anyhow::Error) {
    match error.downcast_ref::<NoResponse>() {
        Some(reason) => hub.unresponsive(client, reason),
        None => tracing::debug!(%error, "session not read"),
    }
}

async fn publish(
    hub: &Hub,
    client: &Client,
    id: &str,
    mut events: crate::api::client::Events,
    last: &mut Option<u64>,
) {
    let mut info_interval = interval(INFO_INTERVAL);
    info_interval.tick().await;
    loop {
        let messages = tokio::select! {
            messages = events.next() => messages,
            _ = info_interval.tick() => {
                match client.info().await {
                    Ok(info) => hub.put(info, client),
                    Err(error) => note_unresponsive(hub, client, &error),
                }
                continue;
            }
        };
        let Some(messages) = messages else { return };
        for message in messages {
            match message {
                Message::Event(entry) => {
                    *last = Some(entry.seq);
                    hub.event(id, entry);
                }
                Message::Counters(counters) => hub.count(id, counters),
                Message::Missed(count) => hub.missed(id, count),
            }
        }
    }
}
