//! Finds sessions, and follows each to its end.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use monitor::stream::Message;
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use tokio::sync::Notify;
use tokio::time::{interval, sleep, timeout};

use super::hub::Hub;
use crate::api::client::Client;
use crate::api::folder::Folder;

/// The folder is looked at as often, in case that nobody says that it has changed.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often a session is asked what it is.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// Between attempts to hear of a session that is there.
const MOMENT: Duration = Duration::from_millis(200);

/// Follows all sessions of a folder on the runtime.
pub(super) fn start(hub: Arc<Hub>, folder: Folder) {
    tokio::spawn(async move {
        let watched = watch(&folder).inspect_err(|error| {
            tracing::debug!(%error, "the folder cannot be watched; it is looked at now and then");
        });
        let watched = watched.ok();
        let followed: Arc<Mutex<HashSet<String>>> = Arc::default();
        loop {
            for id in folder.sessions() {
                let is_new = lock(&followed).insert(id.clone());
                if is_new {
                    let (hub, folder) = (Arc::clone(&hub), folder.clone());
                    let followed = Arc::clone(&followed);
                    tokio::spawn(async move {
                        follow(&hub, &folder, &id).await;
                        hub.remove(&id);
                        lock(&followed).remove(&id);
                    });
                }
            }
            match &watched {
                Some(changed) => {
                    let _ = timeout(LOOK_EVERY, changed.notified()).await;
                }
                None => sleep(LOOK_EVERY).await,
            }
        }
    });
}

fn lock(set: &Mutex<HashSet<String>>) -> std::sync::MutexGuard<'_, HashSet<String>> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says that something in the folder has changed. What has is seen by looking.
fn watch(folder: &Folder) -> std::io::Result<Arc<Notify>> {
    let watch = init(CreateFlags::CLOEXEC)?;
    let flags = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_TO;
    add_watch(&watch, folder.path(), flags)?;
    let changed = Arc::new(Notify::new());
    let teller = Arc::clone(&changed);
    // It waits for the kernel as long as we live.
    thread::spawn(move || {
        let mut events = [0_u8; 4096];
        while rustix::io::read(&watch, &mut events).is_ok_and(|count| count > 0) {
            teller.notify_one();
        }
    });
    Ok(changed)
}

/// Passes on what a session tells, until it has ended.
async fn follow(hub: &Hub, folder: &Folder, id: &str) {
    let Ok(client) = Client::new(folder, id) else {
        return;
    };
    let mut last = None;
    let mut is_known = false;
    while folder.socket(id).exists() {
        let Ok(info) = client.info().await else {
            sleep(MOMENT).await;
            continue;
        };
        if is_known {
            hub.change(info);
        } else {
            hub.add(info, client.clone());
            is_known = true;
        }
        if let Ok(events) = client.events(last).await {
            listen(hub, &client, id, events, &mut last).await;
        }
        sleep(MOMENT).await;
    }
}

async fn listen(
    hub: &Hub,
    client: &Client,
    id: &str,
    mut events: crate::api::client::Events,
    last: &mut Option<u64>,
) {
    let mut ask = interval(ASK_EVERY);
    ask.tick().await;
    loop {
        let messages = tokio::select! {
            messages = events.next() => messages,
            _ = ask.tick() => {
                if let Ok(info) = client.info().await {
                    hub.change(info);
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
