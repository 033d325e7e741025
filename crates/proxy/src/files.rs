//! The target's files, as descriptors of this machine.
//!
//! A file that is read comes whole into memory before `open` returns; a directory becomes a folder with the same names
//! and kinds. Files are read only.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use http::Request;
use http_body_util::{BodyExt as _, Empty};
use interceptor::{Answer, Errno, Metadata, Moment, OpenOptions, RemoteFiles};
use nix::sys::memfd::{MFdFlags, memfd_create};
use protocol::files::{FIRST_BYTES, READ, ReadRange};
use protocol::rpc::{self, Failure, Place};
use tempfile::TempDir;

use crate::agent::{Agent, errno, instead};

/// The largest file that is brought into memory.
const LARGEST_FILE: u64 = 64 << 20;

#[derive(Debug)]
pub(crate) struct TargetFiles {
    agent: Agent,
    /// Folders that stand for directories of the target. They go with the session.
    folders: Mutex<Vec<TempDir>>,
}

impl TargetFiles {
    pub(crate) fn new(agent: Agent) -> Self {
        TargetFiles {
            agent,
            folders: Mutex::default(),
        }
    }

    fn open_file(&self, path: &Path, opened: &rpc::OpenResponse) -> Answer<OwnedFd> {
        let size = opened.metadata.as_ref().map_or(0, |metadata| metadata.size);
        if size > LARGEST_FILE {
            tracing::warn!(path = %path.display(), size, "the file is too large to be brought here");
            return Err(Errno::EFBIG.into());
        }
        let memory =
            memfd_create("standin", MFdFlags::MFD_CLOEXEC).map_err(interceptor::Instead::Fail)?;
        let mut file = File::from(memory);
        file.write_all(&opened.first_bytes)
            .map_err(|error| failed(&error))?;
        if !opened.whole {
            let rest = self
                .agent
                .wait(self.read_rest(opened.handle, opened.first_bytes.len() as u64));
            self.close(opened.handle);
            file.write_all(&rest?).map_err(|error| failed(&error))?;
        }
        // Opened anew: reading only, from the beginning.
        File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .map(OwnedFd::from)
            .map_err(|error| failed(&error))
    }

    async fn read_rest(&self, handle: u64, offset: u64) -> Answer<bytes::Bytes> {
        let mut request = Request::post(READ)
            .body(Empty::<bytes::Bytes>::new())
            .map_err(|_| Errno::EIO)?;
        let range = ReadRange {
            handle,
            offset,
            length: LARGEST_FILE,
        };
        request.headers_mut().extend(range.to_headers());
        let response = self
            .agent
            .client
            .clone()
            .send(request)
            .await
            .map_err(|_| Errno::EIO)?;
        if !response.status().is_success() {
            return Err(errno(Failure::from_headers(response.headers()).as_ref()).into());
        }
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(|_| Errno::EIO)?;
        Ok(body.to_bytes())
    }

    fn close(&self, handle: u64) {
        let request = rpc::CloseRequest {
            handles: vec![handle],
        };
        // The agent closes what is left with the connection.
        let _ = self.agent.wait(self.agent.files().close(request));
    }

    fn open_directory(&self, path: &Path) -> Answer<OwnedFd> {
        let request = rpc::ListRequest {
            place: Some(place(path, true)),
            without_metadata: true,
        };
        let entries = self.agent.wait(async {
            let mut stream = self.agent.files().list(request).await?.into_inner();
            let mut entries = Vec::new();
            while let Some(part) = stream.message().await? {
                entries.extend(part.entries);
            }
            Ok(entries)
        });
        let entries: Vec<rpc::Entry> = entries.map_err(|status| instead(&status))?;
        let folder = tempfile::Builder::new()
            .prefix("standin-")
            .tempdir()
            .map_err(|error| failed(&error))?;
        for entry in entries {
            let place = folder.path().join(OsStr::from_bytes(&entry.name));
            match entry.kind & libc::S_IFMT {
                libc::S_IFDIR => fs::create_dir(&place),
                libc::S_IFLNK => symlink("target", &place),
                _ => File::create(&place).map(drop),
            }
            .map_err(|error| failed(&error))?;
        }
        let opened = File::options()
            .read(true)
            .custom_flags(libc::O_DIRECTORY)
            .open(folder.path())
            .map_err(|error| failed(&error))?;
        self.folders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(folder);
        Ok(OwnedFd::from(opened))
    }
}

impl RemoteFiles for TargetFiles {
    fn open(&self, path: &Path, options: &OpenOptions) -> Answer<OwnedFd> {
        let changes =
            libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND | libc::O_TMPFILE & !libc::O_DIRECTORY;
        if options.flags & libc::O_ACCMODE != libc::O_RDONLY || options.flags & changes != 0 {
            return Err(Errno::EROFS.into());
        }
        let request = rpc::OpenRequest {
            path: path.as_os_str().as_bytes().to_vec().into(),
            directory: options.flags & libc::O_DIRECTORY != 0,
            no_follow: options.flags & libc::O_NOFOLLOW != 0,
            first_bytes: FIRST_BYTES,
            forget_when_whole: true,
            ..rpc::OpenRequest::default()
        };
        let opened = self
            .agent
            .wait(self.agent.files().open(request))
            .map_err(|status| instead(&status))?
            .into_inner();
        let mode = opened.metadata.as_ref().map_or(0, |metadata| metadata.mode);
        match mode & libc::S_IFMT {
            libc::S_IFDIR => {
                self.close(opened.handle);
                self.open_directory(path)
            }
            _ => self.open_file(path, &opened),
        }
    }

    fn metadata(&self, path: &Path, follow: bool) -> Answer<Metadata> {
        let request = rpc::StatRequest {
            place: Some(place(path, follow)),
        };
        let answer = self
            .agent
            .wait(self.agent.files().stat(request))
            .map_err(|status| instead(&status))?;
        answer
            .into_inner()
            .metadata
            .map(|metadata| to_metadata(&metadata))
            .ok_or_else(|| Errno::EIO.into())
    }

    fn read_link(&self, path: &Path) -> Answer<PathBuf> {
        let request = rpc::ReadLinkRequest {
            place: Some(place(path, false)),
        };
        let answer = self
            .agent
            .wait(self.agent.files().read_link(request))
            .map_err(|status| instead(&status))?;
        Ok(PathBuf::from(std::ffi::OsString::from_vec(
            answer.into_inner().target.to_vec(),
        )))
    }

    fn access(&self, path: &Path, mode: i32, follow: bool) -> Answer<()> {
        let request = rpc::AccessRequest {
            place: Some(place(path, follow)),
            read: mode & libc::R_OK != 0,
            write: mode & libc::W_OK != 0,
            execute: mode & libc::X_OK != 0,
        };
        self.agent
            .wait(self.agent.files().access(request))
            .map(drop)
            .map_err(|status| instead(&status))
    }
}

fn place(path: &Path, follow: bool) -> Place {
    let bytes = path.as_os_str().as_bytes().to_vec();
    if follow {
        Place::path(bytes)
    } else {
        Place::path_no_follow(bytes)
    }
}

fn failed(error: &std::io::Error) -> interceptor::Instead {
    error
        .raw_os_error()
        .map_or(Errno::EIO, Errno::from_raw)
        .into()
}

fn to_metadata(from: &rpc::Metadata) -> Metadata {
    let moment = |time: Option<&rpc::Time>| {
        time.map(|time| Moment {
            seconds: time.seconds,
            nanoseconds: time.nanoseconds,
        })
    };
    Metadata {
        device: libc::makedev(from.device_major, from.device_minor),
        inode: from.inode,
        mode: from.mode,
        links: from.links,
        user: from.uid,
        group: from.gid,
        special_device: libc::makedev(from.special_major, from.special_minor),
        size: from.size,
        block_size: from.block_size,
        blocks: from.blocks,
        accessed: moment(from.access_time.as_ref()).unwrap_or_default(),
        modified: moment(from.modification_time.as_ref()).unwrap_or_default(),
        changed: moment(from.change_time.as_ref()).unwrap_or_default(),
        born: moment(from.birth_time.as_ref()),
    }
}
