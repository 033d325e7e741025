//! The most frequent calls (`open`, `stat`, `access`) without a thread that blocks until the agent responds.
//!
//! A cached result of `stat` or `access`, and a file with content of our own, is passed to the completion at once, on the
//! calling thread. In all other cases the request to the agent is a task on the runtime, and the completion runs on the
//! runtime's blocking pool (see [`FileCalls::call_then`]): to create a descriptor, it waits for the kernel, which in turn
//! may wait for requests that the runtime serves. This includes a recently opened file, which needs no request.
//!
//! Only the FUSE backend supports this. The memory backend may first have to write files back to the target.
//!
//! [`FileCalls::call_then`]: super::calls::FileCalls::call_then

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use interceptor::{Completion, Metadata, OpenOptions};

use super::cache::{PathInfo, PathQuery};
use super::convert::file_ref;
use super::{Backend, TargetFiles};

impl TargetFiles {
    /// A shared reference for a task, if the backend supports calls that do not block.
    fn nonblocking(&self) -> Option<Arc<Self>> {
        match self.backend {
            Backend::Fuse(_) => self.weak_self.upgrade(),
            Backend::Memory(_) => None,
        }
    }

    pub(super) fn open_nonblocking(
        &self,
        path: &Path,
        options: &OpenOptions,
        then: Completion<OwnedFd>,
    ) -> Result<(), Completion<OwnedFd>> {
        if let Some(served) = self.served.find(path) {
            then(served.open(options.flags));
            return Ok(());
        }
        let Some(this) = self.nonblocking() else {
            return Err(then);
        };
        let (path, options) = (path.to_path_buf(), *options);
        if self.has_recent(&path, &options) {
            let open = move |()| then(this.open(&path, &options));
            self.calls.call_then(std::future::ready(()), open);
            return Ok(());
        }
        let (files, opened_path) = (Arc::clone(&this), path.clone());
        self.calls.call_then(
            async move { files.open_at_target(&opened_path, &options).await },
            move |opened| {
                let descriptor =
                    opened.and_then(|opened| this.create_descriptor(&path, opened, &options));
                then(descriptor.map_err(Into::into));
            },
        );
        Ok(())
    }

    pub(super) fn metadata_nonblocking(
        &self,
        path: &Path,
        follow: bool,
        then: Completion<Metadata>,
    ) -> Result<(), Completion<Metadata>> {
        if let Some(served) = self.served.find(path) {
            then(served.metadata());
            return Ok(());
        }
        let Some(this) = self.nonblocking() else {
            return Err(then);
        };
        let query = PathQuery::Metadata { follow };
        let miss = match self.lookup_cached(path, &query) {
            Ok(cached) => {
                then(self.metadata_result(cached));
                return Ok(());
            }
            Err(miss) => miss,
        };
        let (path, files) = (path.to_path_buf(), Arc::clone(&this));
        self.calls.call_then(
            async move {
                let metadata = files.calls.stat(file_ref(&path, follow)).await;
                let result = metadata.map(PathInfo::Metadata);
                files.cache_result(&path, query, result, miss)
            },
            move |result| then(this.metadata_result(result)),
        );
        Ok(())
    }

    pub(super) fn access_nonblocking(
        &self,
        path: &Path,
        mode: i32,
        follow: bool,
        then: Completion<()>,
    ) -> Result<(), Completion<()>> {
        if let Some(served) = self.served.find(path) {
            then(served.access(mode));
            return Ok(());
        }
        let Some(this) = self.nonblocking() else {
            return Err(then);
        };
        let query = PathQuery::Access { mode, follow };
        let miss = match self.lookup_cached(path, &query) {
            Ok(cached) => {
                then(self.access_result(path, mode, cached));
                return Ok(());
            }
            Err(miss) => miss,
        };
        let (path, files) = (path.to_path_buf(), Arc::clone(&this));
        let checked_path = path.clone();
        self.calls.call_then(
            async move {
                let access = files.calls.access(file_ref(&checked_path, follow), mode);
                let result = access.await.map(|()| PathInfo::Accessible);
                files.cache_result(&checked_path, query, result, miss)
            },
            move |result| then(this.access_result(&path, mode, result)),
        );
        Ok(())
    }
}
