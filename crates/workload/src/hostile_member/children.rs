//! The sessions that the Primary has created in a hostile member, as a log of events.

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::objects;

/// The number of an event is its position, and the resource version of its object.
#[derive(Default)]
pub(super) struct Children(watch::Sender<Vec<Event>>);

struct Event {
    kind: &'static str,
    child: Value,
}

impl Children {
    /// Returns the stored child. `None`: it exists already.
    pub(super) fn create(&self, child: Value) -> Option<Value> {
        let name = name(&child).to_owned();
        let mut created = None;
        self.0.send_if_modified(|events| {
            if find(events, &name).is_some() {
                return false;
            }
            created = Some(add(events, "ADDED", child));
            true
        });
        created
    }

    /// Returns the deleted child, if it existed.
    pub(super) fn delete(&self, name: &str) -> Option<Value> {
        let mut deleted = None;
        self.0.send_if_modified(|events| {
            let child = find(events, name).cloned();
            deleted = child.map(|child| add(events, "DELETED", child));
            deleted.is_some()
        });
        deleted
    }

    pub(super) fn list(&self) -> Value {
        let events = self.0.borrow();
        let children: Vec<Value> = existing(&events).cloned().collect();
        objects::children(&children, events.len(), None)
    }

    /// Sends the events after that number, and all that follow.
    pub(super) async fn send_events(&self, after: usize, to_client: &mpsc::Sender<Bytes>) {
        let (mut changes, mut sent) = (self.0.subscribe(), after);
        while self.send_new(&mut sent, to_client).await {
            tokio::select! {
                changed = changes.wait_for(|events| events.len() > sent) => {
                    if changed.is_err() { return }
                }
                () = to_client.closed() => return,
            }
        }
    }

    /// Sends events with huge statuses as fast as the client reads them.
    pub(super) async fn send_huge_events(&self, after: usize, to_client: &mpsc::Sender<Bytes>) {
        let (mut changes, mut sent) = (self.0.subscribe(), after);
        let statuses = [objects::huge_status("one"), objects::huge_status("other")];
        for status in statuses.iter().cycle() {
            if !self.send_new(&mut sent, to_client).await {
                return;
            }
            let children: Vec<Value> = existing(&self.0.borrow()).cloned().collect();
            for mut child in children {
                child["status"] = status.clone();
                let event = line("MODIFIED", &child);
                if to_client.send(event).await.is_err() {
                    return;
                }
            }
            let has_any = changes.wait_for(|events| existing(events).next().is_some());
            tokio::select! {
                has_any = has_any => if has_any.is_err() { return },
                () = to_client.closed() => return,
            }
        }
    }

    /// Whether the client is still connected.
    async fn send_new(&self, sent: &mut usize, to_client: &mpsc::Sender<Bytes>) -> bool {
        let lines: Vec<Bytes> = {
            let events = self.0.borrow();
            let new = events.iter().skip(*sent);
            let lines = new.map(|event| line(event.kind, &event.child)).collect();
            *sent = events.len();
            lines
        };
        for line in lines {
            if to_client.send(line).await.is_err() {
                return false;
            }
        }
        true
    }
}

fn add(events: &mut Vec<Event>, kind: &'static str, mut child: Value) -> Value {
    child["metadata"]["resourceVersion"] = (events.len() + 1).to_string().into();
    child["metadata"]["uid"] = name(&child).into();
    events.push(Event {
        kind,
        child: child.clone(),
    });
    child
}

fn name(child: &Value) -> &str {
    child["metadata"]["name"].as_str().unwrap_or_default()
}

fn find<'a>(events: &'a [Event], name: &str) -> Option<&'a Value> {
    existing(events).find(|child| self::name(child) == name)
}

fn existing(events: &[Event]) -> impl Iterator<Item = &Value> {
    events.iter().enumerate().filter_map(|(number, event)| {
        let mut later = events[number + 1..].iter();
        let is_last = !later.any(|later| name(&later.child) == name(&event.child));
        (is_last && event.kind != "DELETED").then_some(&event.child)
    })
}

fn line(kind: &str, child: &Value) -> Bytes {
    format!("{}\n", json!({"type": kind, "object": child})).into()
}
