//! What is asked and done by name.

use std::ffi::{OsStr, OsString};
use std::future::Future;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use interceptor::{
    Answer, Errno, FileSystem, Metadata, OpenOptions, RemoteFiles, SetTime, Then, Times,
};
use protocol::rpc::{self, Place};

use super::cache::{self, Question};
use super::calls::Client;
use super::convert::{self, bytes, place};
use super::{TargetFiles, Through, inodes};

impl TargetFiles {
    /// An answer of a moment ago, or the target's.
    fn remembered(
        &self,
        path: &Path,
        question: Question,
        ask: impl FnOnce() -> Result<cache::Answer, Errno>,
    ) -> Result<cache::Answer, Errno> {
        self.settle();
        match self.recall(path, &question) {
            Ok(known) => known,
            Err(asked) => self.keep(path, question, ask(), asked),
        }
    }

    /// An answer of a moment ago, or what [`keep`](Self::keep) needs to know.
    pub(super) fn recall(
        &self,
        path: &Path,
        question: &Question,
    ) -> Result<Result<cache::Answer, Errno>, cache::Asked> {
        Ok(match self.cache.get(path, question)? {
            cache::Answer::Failed(errno) => Err(errno),
            answer => Ok(answer),
        })
    }

    /// Remembers what the target answered, and gives it back.
    pub(super) fn keep(
        &self,
        path: &Path,
        question: Question,
        answer: Result<cache::Answer, Errno>,
        asked: cache::Asked,
    ) -> Result<cache::Answer, Errno> {
        let kept = match &answer {
            Ok(answer) => Some(answer.clone()),
            Err(errno) if is_about_the_name(*errno) => Some(cache::Answer::Failed(*errno)),
            Err(_) => None,
        };
        if let Some(kept) = kept {
            self.cache.put(path, question, kept, asked);
        }
        answer
    }

    /// Changes something by name, after which nothing that is remembered is good.
    fn change<T, F>(&self, path: &Path, question: impl FnOnce(Client) -> F) -> Answer<()>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        if self.served.find(path).is_some() || !self.rules.may_write(path.as_os_str().as_bytes()) {
            return Err(Errno::EROFS.into());
        }
        self.settle();
        let done = self.calls.ask(question);
        // Also after a failure: half of it may be done.
        self.changed();
        Ok(done.map(drop)?)
    }

    /// As the application sees it: on the device on which its descriptors are.
    pub(super) fn seen(&self, metadata: &rpc::Metadata) -> Metadata {
        let seen = convert::metadata(metadata);
        match &self.through {
            Through::Fuse(fuse) => Metadata {
                device: fuse.device(),
                inode: self.inodes.number(inodes::identity(metadata)),
                ..seen
            },
            Through::Memory(_) => seen,
        }
    }
}

impl TargetFiles {
    pub(super) fn metadata_in(&self, answer: Result<cache::Answer, Errno>) -> Answer<Metadata> {
        match answer? {
            cache::Answer::Metadata(metadata) => Ok(self.seen(&metadata)),
            _ => Err(Errno::EIO.into()),
        }
    }

    /// What the target allows, the rules may not.
    pub(super) fn accessible_in(
        &self,
        path: &Path,
        mode: i32,
        answer: Result<cache::Answer, Errno>,
    ) -> Answer<()> {
        answer?;
        if mode & libc::W_OK != 0 && !self.rules.may_write(path.as_os_str().as_bytes()) {
            return Err(Errno::EROFS.into());
        }
        Ok(())
    }
}

/// A failure that the same question will meet again.
fn is_about_the_name(errno: Errno) -> bool {
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
    fn open(&self, path: &Path, options: &OpenOptions) -> Answer<OwnedFd> {
        Self::open(self, path, options)
    }

    fn metadata(&self, path: &Path, follow: bool) -> Answer<Metadata> {
        if let Some(served) = self.served.find(path) {
            return served.metadata();
        }
        let ask = || {
            let metadata = self.calls.wait(self.calls.stat(place(path, follow)))?;
            Ok(cache::Answer::Metadata(metadata))
        };
        self.metadata_in(self.remembered(path, Question::Metadata { follow }, ask))
    }

    fn start_open(
        &self,
        path: &Path,
        options: &OpenOptions,
        then: Then<OwnedFd>,
    ) -> Result<(), Then<OwnedFd>> {
        self.start_to_open(path, options, then)
    }

    fn start_metadata(
        &self,
        path: &Path,
        follow: bool,
        then: Then<Metadata>,
    ) -> Result<(), Then<Metadata>> {
        self.start_to_describe(path, follow, then)
    }

    fn start_access(
        &self,
        path: &Path,
        mode: i32,
        follow: bool,
        then: Then<()>,
    ) -> Result<(), Then<()>> {
        self.start_to_access(path, mode, follow, then)
    }

    fn read_link(&self, path: &Path) -> Answer<PathBuf> {
        if self.served.find(path).is_some() {
            return Err(Errno::EINVAL.into());
        }
        let ask = || {
            let place = Some(place(path, false));
            let request = rpc::ReadLinkRequest { place };
            let answer = self
                .calls
                .ask(|mut files| async move { files.read_link(request).await })?;
            let content = OsString::from_vec(answer.target.to_vec());
            Ok(cache::Answer::Link(PathBuf::from(content)))
        };
        match self.remembered(path, Question::Link, ask)? {
            cache::Answer::Link(content) => Ok(content),
            _ => Err(Errno::EIO.into()),
        }
    }

    fn canonical(&self, path: &Path) -> Answer<PathBuf> {
        if self.served.find(path).is_some() {
            return Ok(path.to_path_buf());
        }
        let ask = || {
            let request = rpc::ResolvePathRequest { path: bytes(path) };
            let answer = self
                .calls
                .ask(|mut files| async move { files.resolve_path(request).await })?;
            let path = OsString::from_vec(answer.path.to_vec());
            Ok(cache::Answer::Link(PathBuf::from(path)))
        };
        match self.remembered(path, Question::Canonical, ask)? {
            cache::Answer::Link(path) => Ok(path),
            _ => Err(Errno::EIO.into()),
        }
    }

    fn access(&self, path: &Path, mode: i32, follow: bool) -> Answer<()> {
        if let Some(served) = self.served.find(path) {
            return served.access(mode);
        }
        let question = Question::Access { mode, follow };
        let ask = || {
            let asked = self.calls.access(place(path, follow), mode);
            self.calls.wait(asked).map(|()| cache::Answer::Accessible)
        };
        self.accessible_in(path, mode, self.remembered(path, question, ask))
    }

    fn file_system(&self, path: &Path) -> Answer<FileSystem> {
        let place = Some(place(path, true));
        let request = rpc::StatFilesystemRequest { place };
        let answer = self
            .calls
            .ask(|mut files| async move { files.stat_filesystem(request).await })?;
        Ok(convert::file_system(&answer))
    }

    fn create_directory(&self, path: &Path, mode: u32) -> Answer<()> {
        let request = rpc::MakeDirectoryRequest {
            path: bytes(path),
            mode,
        };
        self.change(path, |mut files| async move {
            files.make_directory(request).await
        })
    }

    fn create_node(&self, path: &Path, mode: u32, device: u64) -> Answer<()> {
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

    fn remove_file(&self, path: &Path) -> Answer<()> {
        let request = rpc::UnlinkRequest { path: bytes(path) };
        self.change(path, |mut files| async move { files.unlink(request).await })
    }

    fn remove_directory(&self, path: &Path) -> Answer<()> {
        let request = rpc::RemoveDirectoryRequest { path: bytes(path) };
        self.change(path, |mut files| async move {
            files.remove_directory(request).await
        })
    }

    fn rename(&self, from: &Path, to: &Path, flags: u32) -> Answer<()> {
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

    fn create_hard_link(&self, from: &Path, to: &Path, follow: bool) -> Answer<()> {
        let request = rpc::LinkRequest {
            from: Some(place(from, follow)),
            to: bytes(to),
        };
        self.change(to, |mut files| async move { files.link(request).await })
    }

    fn name_open_file(&self, file: BorrowedFd<'_>, to: &Path) -> Answer<()> {
        let handle = match &self.through {
            Through::Fuse(fuse) => fuse.handle_of(file)?,
            Through::Memory(memory) => memory.handle_of(file)?,
        };
        let request = rpc::LinkRequest {
            from: Some(Place::handle(handle)),
            to: bytes(to),
        };
        self.change(to, |mut files| async move { files.link(request).await })
    }

    fn create_symbolic_link(&self, content: &Path, path: &Path) -> Answer<()> {
        let request = rpc::SymbolicLinkRequest {
            target: bytes(content),
            path: bytes(path),
        };
        self.change(path, |mut files| async move {
            files.symbolic_link(request).await
        })
    }

    fn set_mode(&self, path: &Path, mode: u32, follow: bool) -> Answer<()> {
        let place = Some(place(path, follow));
        let request = rpc::SetModeRequest { place, mode };
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
    ) -> Answer<()> {
        let request = rpc::SetOwnerRequest {
            place: Some(place(path, follow)),
            uid: user,
            gid: group,
        };
        self.change(
            path,
            |mut files| async move { files.set_owner(request).await },
        )
    }

    fn set_times(&self, path: &Path, times: &Times, follow: bool) -> Answer<()> {
        if times.accessed == SetTime::Keep && times.modified == SetTime::Keep {
            return Ok(());
        }
        let request = rpc::SetTimesRequest {
            place: Some(place(path, follow)),
            access_time: convert::new_time(times.accessed),
            modification_time: convert::new_time(times.modified),
        };
        self.change(
            path,
            |mut files| async move { files.set_times(request).await },
        )
    }

    fn set_length(&self, path: &Path, length: u64) -> Answer<()> {
        let request = rpc::TruncateRequest {
            place: Some(place(path, true)),
            size: length,
        };
        self.change(
            path,
            |mut files| async move { files.truncate(request).await },
        )
    }

    fn attribute(&self, path: &Path, name: &OsStr, follow: bool) -> Answer<Vec<u8>> {
        if self.served.find(path).is_some() {
            return Err(Errno::ENODATA.into());
        }
        let request = rpc::GetAttributeRequest {
            place: Some(place(path, follow)),
            name: name_bytes(name),
        };
        let answer = self
            .calls
            .ask(|mut files| async move { files.get_attribute(request).await })?;
        Ok(answer.value.to_vec())
    }

    fn attributes(&self, path: &Path, follow: bool) -> Answer<Vec<u8>> {
        if self.served.find(path).is_some() {
            return Ok(Vec::new());
        }
        let place = Some(place(path, follow));
        let request = rpc::ListAttributesRequest { place };
        let answer = self
            .calls
            .ask(|mut files| async move { files.list_attributes(request).await })?;
        Ok(convert::zero_ended(&answer.names))
    }

    fn set_attribute(
        &self,
        path: &Path,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        follow: bool,
    ) -> Answer<()> {
        let request = rpc::SetAttributeRequest {
            place: Some(place(path, follow)),
            name: name_bytes(name),
            value: Bytes::copy_from_slice(value),
            create: flags & libc::XATTR_CREATE != 0,
            replace: flags & libc::XATTR_REPLACE != 0,
        };
        self.change(path, |mut files| async move {
            files.set_attribute(request).await
        })
    }

    fn remove_attribute(&self, path: &Path, name: &OsStr, follow: bool) -> Answer<()> {
        let request = rpc::RemoveAttributeRequest {
            place: Some(place(path, follow)),
            name: name_bytes(name),
        };
        self.change(path, |mut files| async move {
            files.remove_attribute(request).await
        })
    }
}
