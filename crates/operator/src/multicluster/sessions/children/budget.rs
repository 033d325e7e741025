//! Limits how much of a member's children is kept in memory. A member that lists more is treated as unreachable.

use std::collections::HashMap;

use api::{MirrordClusterSession, MirrordClusterSessionSpec};
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;

/// The limit of children. Each has a user with a connected client.
const MAX_CHILDREN: usize = 10_000;
/// The limit of all children together: about three kilobytes for each.
const MAX_BYTES: usize = 32 * 1024 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the member lists more than {MAX_CHILDREN} parts of sessions, or more than {} MiB of them, which is the limit",
    MAX_BYTES / 1024 / 1024
)]
pub(super) struct TooMany;

/// The sizes of the children of one member.
#[derive(Default)]
pub(super) struct Budget {
    sizes: HashMap<String, usize>,
    used: usize,
}

impl Budget {
    /// Counts an event of the watch.
    pub(super) fn count(&mut self, event: &Event<MirrordClusterSession>) -> Result<(), TooMany> {
        match event {
            Event::Init => *self = Self::default(),
            Event::InitDone => {}
            Event::Apply(child) | Event::InitApply(child) => {
                let size = serde_json::to_vec(child).map_or(MAX_BYTES, |text| text.len());
                self.remove(&child.name_any());
                self.sizes.insert(child.name_any(), size);
                self.used = self.used.saturating_add(size);
            }
            Event::Delete(child) => self.remove(&child.name_any()),
        }
        match self.sizes.len() > MAX_CHILDREN || self.used > MAX_BYTES {
            true => Err(TooMany),
            false => Ok(()),
        }
    }

    fn remove(&mut self, name: &str) {
        let size = self.sizes.remove(name).unwrap_or_default();
        self.used = self.used.saturating_sub(size);
    }
}

/// The event with the fields of the child that its parent needs.
pub(super) fn without_details(event: Event<MirrordClusterSession>) -> Event<MirrordClusterSession> {
    let slim = |mut child: MirrordClusterSession| {
        child.metadata.managed_fields = None;
        child.metadata.annotations = None;
        child.spec = MirrordClusterSessionSpec::default();
        child
    };
    match event {
        Event::Apply(child) => Event::Apply(slim(child)),
        Event::InitApply(child) => Event::InitApply(slim(child)),
        Event::Delete(child) => Event::Delete(slim(child)),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(name: &str, message_bytes: usize) -> MirrordClusterSession {
        let mut child = MirrordClusterSession::new(name, MirrordClusterSessionSpec::default());
        child.status = Some(api::MirrordClusterSessionStatus {
            message: Some("x".repeat(message_bytes)),
            ..api::MirrordClusterSessionStatus::default()
        });
        child
    }

    #[test]
    fn many_children_and_large_children_are_too_many() {
        let mut budget = Budget::default();
        for number in 0..MAX_CHILDREN {
            let event = Event::InitApply(child(&number.to_string(), 0));
            assert_eq!(budget.count(&event), Ok(()), "{number}");
        }
        let one_more = Event::Apply(child("one-more", 0));
        assert_eq!(budget.count(&one_more), Err(TooMany));
        assert_eq!(budget.count(&Event::Delete(child("one-more", 0))), Ok(()));
        assert_eq!(
            budget.count(&Event::Apply(child("7", 1))),
            Ok(()),
            "the same child"
        );
        // A new list begins.
        assert_eq!(budget.count(&Event::Init), Ok(()));
        let half = MAX_BYTES / 2;
        assert_eq!(
            budget.count(&Event::InitApply(child("a", half - 2000))),
            Ok(())
        );
        assert_eq!(
            budget.count(&Event::InitApply(child("b", half - 2000))),
            Ok(())
        );
        assert_eq!(
            budget.count(&Event::Apply(child("b", half + 2000))),
            Err(TooMany)
        );
        assert_eq!(budget.count(&Event::Apply(child("b", 10))), Ok(()));
    }
}
