//! Calls by path: `stat`, `mkdir`, `rename`, …

use std::ffi::{OsStr, OsString};
use std::future::Future;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use interceptor::{
    CallResult, Completion, Errno, FileSystemStats, Metadata, OpenOptions, RemoteFiles, SetTime,
    Times,
};
use protocol::rpc::{self, FileRef};

use super::cache::{CacheMiss, PathInfo, PathQuery};
use super::calls::Client;
use super::convert::{self, bytes, file_ref};
use super::{Backend, TargetFiles, inodes};

impl TargetFiles {
    /// The cached result, or the one of `request`, which is then cached.
    fn cached_or(
        &self,
        path: &Path,
        query: PathQuery,
        request: impl FnOnce() -> Result<PathInfo, Errno>,
    ) -> Result<PathInfo, Errno> {
        self.flush();
        match self.lookup_cached(path, &query) {
            Ok(cached) => cached,
            Err(miss) => self.cache_result(path, query, request(), miss),
        }
    }

    /// The cached result, or the miss to pass to [`cache_result`](Self::cache_result).
    pub(super) fn lookup_cached(
        &self,
        path: &Path,
        query: &PathQuery,
    ) -> Result<Result<PathInfo, Errno>, CacheMiss> {
        Ok(match self.cache.get(path, query)? {
            PathInfo::Failed(errno) => Err(errno),
            info => Ok(info),
        })
    }

    /// Caches the target's result, and returns it.
    pub(super) fn cache_result(
        &self,
        path: &Path,
        query: PathQuery,
        result: Result<PathInfo, Errno>,
        miss: CacheMiss,
    ) -> Result<PathInfo, Errno> {
        let cacheable = match &result {
            Ok(info) => Some(info.clone()),
            Err(errno) if is_cacheable_failure(*errno) => Some(PathInfo::Failed(*errno)),
            Err(_) => None,
        };
        if let Some(info) = cacheable {
            self.cache.put(path, query, info, miss);
        }
        result
    }

    /// Makes a call that changes something by path, and invalidates the caches.
    fn change<T, F>(&self, path: &Path, request: impl FnOnce(Client) -> F) -> CallResult<()>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        if self.served.find(path).is_some() || !self.rules.may_write(path.as_os_str().as_bytes()) {
            return Err(Errno::EROFS.into());
        }
        self.flush();
        let result = self.calls.call_blocking(request);
        // Also after a failure: the change may be partly done.
        self.invalidate();
        Ok(result.map(drop)?)
    }

    /// The metadata that the application sees. With FUSE, the device is the one of the application's descriptors.
    fn application_metadata(&self, metadata: &rpc::Metadata) -> Metadata {
        let converted = convert::metadata(metadata);
        match &self.backend {
            Backend::Fuse(fuse) => Metadata {
                device: fuse.device(),
                inode: self.inodes.number(inodes::file_id(metadata)),
                ..converted
            },
            Backend::Memory(_) => converted,
        }
    }
}

impl TargetFiles {
    pub(super) fn metadata_result(&self, result: Result<PathInfo, Errno>) -> CallResult<Metadata> {
        match result? {
            PathInfo::Metadata(metadata) => Ok(self.application_metadata(&metadata)),
            _ => Err(Errno::EIO.into()),
        }
    }

    /// Write access that the target allows may still be forbidden by the rules of the configuration.
    pub(super) fn access_result(
        &self,
        path: &Path,
        mode: i32,
        result: Result<PathInfo, Errno>,
    ) -> CallResult<()> {
        result?;
        if mode & libc::W_OK != 0 && !self.rules.may_write(path.as_os_str().as_bytes()) {
            return Err(Errno::EROFS.into());
        }
        Ok(())
    }
}

/// Whether the same call would fail in the same way again.
fn is_cacheable_failure(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ENOENT
            | Errno::ENOTDIR
            | Errno::EACCES
            | Errno::ELOOP
            | Errno::ENAMETOOLONG
            | Errno::EINVAL
    )
}

fn name_bytes(name: &OsStr) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

impl RemoteFiles for TargetFiles {
    fn open(&self, path: &Path, options: &OpenOptions) -> CallResult<OwnedFd> {
        Self::open(self, path, options)
    }

    fn metadata(&self, path: &Path, follow: bool) -> CallResult<Metadata> {
        if let Some(served) = self.served.find(path) {
            return served.metadata();
        }
        let request_info = || {
            let metadata = self
                .calls
                .block_on(self.calls.stat(file_ref(path, follow)))?;
            Ok(PathInfo::Metadata(metadata))
        };
        self.metadata_result(self.cached_or(path, PathQuery::Metadata { follow }, request_info))
    }

    fn start_open(
        &self,
        path: &Path,
        options: &OpenOptions,
        then: Completion<OwnedFd>,
    ) -> Result<(), Completion<OwnedFd>> {
        self.open_nonblocking(path, options, then)
    }

    fn start_metadata(
        &self,
        path: &Path,
        follow: bool,
        then: Completion<Metadata>,
    ) -> Result<(), Completion<Metadata>> {
        self.metadata_nonblocking(path, follow, then)
    }

    fn start_access(
        &self,
        path: &Path,
        mode: i32,
        follow: bool,
        then: Completion<()>,
    ) -> Result<(), Completion<()>> {
        self.access_nonblocking(path, mode, follow, then)
    }

    fn read_link(&self, path: &Path) -> CallResult<PathBuf> {
        if self.served.find(path).is_some() {
            return Err(Errno::EINVAL.into());
        }
        let request_info = || {
            let file_ref = Some(file_ref(path, false));
            let request = rpc::ReadLinkRequest { file: file_ref };
            let response = self
                .calls
                .call_blocking(|mut files| async move { files.read_link(request).await })?;
            let content = OsString::from_vec(response.target.to_vec());
            Ok(PathInfo::Link(PathBuf::from(content)))
        };
        match self.cached_or(path, PathQuery::Link, request_info)? {
            PathInfo::Link(content) => Ok(content),
            _ => Err(Errno::EIO.into()),
        }
    }

    fn canonical(&self, path: &Path) -> CallResult<PathBuf> {
        if self.served.find(path).is_some() {
            return Ok(path.to_path_buf());
        }
        let request_info = || {
            let request = rpc::ResolvePathRequest { path: bytes(path) };
            let response = self
                .calls
                .call_blocking(|mut files| async move { files.resolve_path(request).await })?;
            let path = OsString::from_vec(response.path.to_vec());
            Ok(PathInfo::Link(PathBuf::from(path)))
        };
        match self.cached_or(path, PathQuery::Canonical, request_info)? {
            PathInfo::Link(path) => Ok(path),
            _ => Err(Errno::EIO.into()),
        }
    }

    fn access(&self, path: &Path, mode: i32, follow: bool) -> CallResult<()> {
        if let Some(served) = self.served.find(path) {
            return served.access(mode);
        }
        let query = PathQuery::Access { mode, follow };
        let request_info = || {
            let call = self.calls.access(file_ref(path, follow), mode);
            self.calls.block_on(call).map(|()| PathInfo::Accessible)
        };
        self.access_result(path, mode, self.cached_or(path, query, request_info))
    }

    fn file_system(&self, path: &Path) -> CallResult<FileSystemStats> {
        let file_ref = Some(file_ref(path, true));
        let request = rpc::StatFilesystemRequest { file: file_ref };
        let response = self
            .calls
            .call_blocking(|mut files| async move { files.stat_filesystem(request).await })?;
        Ok(convert::file_system(&response))
    }

    fn create_directory(&self, path: &Path, mode: u32) -> CallResult<()> {
        let request = rpc::MakeDirectoryRequest {
            path: bytes(path),
            mode,
        };
        self.change(path, |mut files| async move {
            files.make_directory(request).await
        })
    }

    fn create_node(&self, path: &Path, mode: u32, device: u64) -> CallResult<()> {
        let request = rpc::MakeNodeRequest {
            path: bytes(path),
            mode,
            special_major: libc::major(device),
            special_minor: libc::minor(device),
        };
        self.change(
            path,
            |mut files| async move { files.make_node(request).await },
        )
    }

    fn remove_file(&self, path: &Path) -> CallResult<()> {
        let request = rpc::UnlinkRequest { path: bytes(path) };
        self.change(path, |mut files| async move { files.unlink(request).await })
    }

    fn remove_directory(&self, path: &Path) -> CallResult<()> {
        let request = rpc::RemoveDirectoryRequest { path: bytes(path) };
        self.change(path, |mut files| async move {
            files.remove_directory(request).await
        })
    }

    fn rename(&self, from: &Path, to: &Path, flags: u32) -> CallResult<()> {
        if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) != 0 {
            return Err(Errno::EINVAL.into());
        }
        if !self.rules.may_write(to.as_os_str().as_bytes()) {
            return Err(Errno::EROFS.into());
        }
        let request = rpc::RenameRequest {
            from: bytes(from),
            to: bytes(to),
            no_replace: flags & libc::RENAME_NOREPLACE != 0,
            exchange: flags & libc::RENAME_EXCHANGE != 0,
        };
        self.change(from, |mut files| async move { files.rename(request).await })
    }

    fn create_hard_link(&self, from: &Path, to: &Path, follow: bool) -> CallResult<()> {
        let request = rpc::LinkRequest {
            from: Some(file_ref(from, follow)),
            to: bytes(to),
        };
        self.change(to, |mut files| async move { files.link(request).await })
    }

    fn name_open_file(&self, file: BorrowedFd<'_>, to: &Path) -> CallResult<()> {
        let handle = match &self.backend {
            Backend::Fuse(fuse) => fuse.handle_of(file)?,
            Backend::Memory(memory) => memory.handle_of(file)?,
        };
        let request = rpc::LinkRequest {
            from: Some(FileRef::handle(handle)),
            to: bytes(to),
        };
        self.change(to, |mut files| async move { files.link(request).await })
    }

    fn create_symbolic_link(&self, content: &Path, path: &Path) -> CallResult<()> {
        let request = rpc::SymbolicLinkRequest {
            target: bytes(content),
            path: bytes(path),
        };
        self.change(path, |mut files| async move {
            files.symbolic_link(request).await
        })
    }

    fn set_mode(&self, path: &Path, mode: u32, follow: bool) -> CallResult<()> {
        let file_ref = Some(file_ref(path, follow));
        let request = rpc::SetModeRequest {
            file: file_ref,
            mode,
        };
        self.change(
            path,
            |mut files| async move { files.set_mode(request).await },
        )
    }

    fn set_owner(
        &self,
        path: &Path,
        user: Option<u32>,
        group: Option<u32>,
        follow: bool,
    ) -> CallResult<()> {
        let request = rpc::SetOwnerRequest {
            file: Some(file_ref(path, follow)),
            uid: user,
            gid: group,
        };
        self.change(
            path,
            |mut files| async move { files.set_owner(request).await },
        )
    }

    fn set_times(&self, path: &Path, times: &Times, follow: bool) -> CallResult<()> {
        if times.accessed == SetTime::Keep && times.modified == SetTime::Keep {
            return Ok(());
        }
        let request = rpc::SetTimesRequest {
            file: Some(file_ref(path, follow)),
            access_time: convert::new_time(times.accessed),
            modification_time: convert::new_time(times.modified),
        };
        self.change(
            path,
            |mut files| async move { files.set_times(request).await },
        )
    }

    fn set_length(&self, path: &Path, length: u64) -> CallResult<()> {
        let request = rpc::TruncateRequest {
            file: Some(file_ref(path, true)),
            size: length,
        };
        self.change(
            path,
            |mut files| async move { files.truncate(request).await },
        )
    }

    fn attribute(&self, path: &Path, name: &OsStr, follow: bool) -> CallResult<Vec<u8>> {
        if self.served.find(path).is_some() {
            return Err(Errno::ENODATA.into());
        }
        let request = rpc::GetAttributeRequest {
            file: Some(file_ref(path, follow)),
            name: name_bytes(name),
        };
        let response = self
            .calls
            .call_blocking(|mut files| async move { files.get_attribute(request).await })?;
        Ok(response.value.to_vec())
    }

    fn attributes(&self, path: &Path, follow: bool) -> CallResult<Vec<u8>> {
        if self.served.find(path).is_some() {
            return Ok(Vec::new());
        }
        let file_ref = Some(file_ref(path, follow));
        let request = rpc::ListAttributesRequest { file: file_ref };
        let response = self
            .calls
            .call_blocking(|mut files| async move { files.list_attributes(request).await })?;
        Ok(convert::nul_terminated(&response.names))
    }

    fn set_attribute(
        &self,
        path: &Path,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        follow: bool,
    ) -> CallResult<()> {
        let request = rpc::SetAttributeRequest {
            file: Some(file_ref(path, follow)),
            name: name_bytes(name),
            value: Bytes::copy_from_slice(value),
            create: flags & libc::XATTR_CREATE != 0,
            replace: flags & libc::XATTR_REPLACE != 0,
        };
        self.change(path, |mut files| async move {
            files.set_attribute(request).await
        })
    }

    fn remove_attribute(&self, path: &Path, name: &OsStr, follow: bool) -> CallResult<()> {
        let request = rpc::RemoveAttributeRequest {
            file: Some(file_ref(path, follow)),
            name: name_bytes(name),
        };
        self.change(path, |mut files| async move {
            files.remove_attribute(request).await
        })
    }
}
