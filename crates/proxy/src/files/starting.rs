//! The most frequent questions, asked without a thread that waits: what is known is answered at once, and otherwise whichever
//! thread of the runtime gets the target's answer gives it to the application.
//!
//! Only with FUSE: without it, opening and asking may have to wait for files that are on their way to the target.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use interceptor::{Metadata, OpenOptions, Then};

use super::cache::{self, Question};
use super::convert::place;
use super::{TargetFiles, Through};

impl TargetFiles {
    /// Ourselves, if nothing has to be waited for.
    fn starter(&self) -> Option<Arc<Self>> {
        match self.through {
            Through::Fuse(_) => self.this.upgrade(),
            Through::Memory(_) => None,
        }
    }

    pub(super) fn start_to_open(
        &self,
        path: &Path,
        options: &OpenOptions,
        then: Then<OwnedFd>,
    ) -> Result<(), Then<OwnedFd>> {
        if let Some(served) = self.served.find(path) {
            then(served.open(options.flags));
            return Ok(());
        }
        let Some(this) = self.starter() else {
            return Err(then);
        };
        let (path, options) = (path.to_path_buf(), *options);
        if self.has_recent(&path, &options) {
            let open = move |()| then(this.open(&path, &options));
            self.calls.ask_then(std::future::ready(()), open);
            return Ok(());
        }
        let (asking, asked) = (Arc::clone(&this), path.clone());
        self.calls.ask_then(
            async move { asking.open_at_target(&asked, &options).await },
            move |opened| {
                let descriptor = opened.and_then(|opened| this.descriptor(&path, opened, &options));
                then(descriptor.map_err(Into::into));
            },
        );
        Ok(())
    }

    pub(super) fn start_to_describe(
        &self,
        path: &Path,
        follow: bool,
        then: Then<Metadata>,
    ) -> Result<(), Then<Metadata>> {
        if let Some(served) = self.served.find(path) {
            then(served.metadata());
            return Ok(());
        }
        let Some(this) = self.starter() else {
            return Err(then);
        };
        let question = Question::Metadata { follow };
        let asked = match self.recall(path, &question) {
            Ok(known) => {
                then(self.metadata_in(known));
                return Ok(());
            }
            Err(asked) => asked,
        };
        let (path, asking) = (path.to_path_buf(), Arc::clone(&this));
        self.calls.ask_then(
            async move {
                let metadata = asking.calls.stat(place(&path, follow)).await;
                let answer = metadata.map(cache::Answer::Metadata);
                asking.keep(&path, question, answer, asked)
            },
            move |answer| then(this.metadata_in(answer)),
        );
        Ok(())
    }

    pub(super) fn start_to_access(
        &self,
        path: &Path,
        mode: i32,
        follow: bool,
        then: Then<()>,
    ) -> Result<(), Then<()>> {
        if let Some(served) = self.served.find(path) {
            then(served.access(mode));
            return Ok(());
        }
        let Some(this) = self.starter() else {
            return Err(then);
        };
        let question = Question::Access { mode, follow };
        let asked = match self.recall(path, &question) {
            Ok(known) => {
                then(self.accessible_in(path, mode, known));
                return Ok(());
            }
            Err(asked) => asked,
        };
        let (path, asking) = (path.to_path_buf(), Arc::clone(&this));
        let asking_path = path.clone();
        self.calls.ask_then(
            async move {
                let asked_for = asking.calls.access(place(&asking_path, follow), mode);
                let answer = asked_for.await.map(|()| cache::Answer::Accessible);
                asking.keep(&asking_path, question, answer, asked)
            },
            move |answer| then(this.accessible_in(&path, mode, answer)),
        );
        Ok(())
    }
}
