//! Directory listings, in chunks that are read when the client has consumed the one before.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, stream};
use protocol::rpc::{Entry, ListResponse};
use rustix::fs::{Mode, OFlags, RawDir, openat};
use rustix::io::Errno;
use tonic::Status;

use super::metadata;
use super::tree::{FileLocation, Tree};
use crate::connection::Connection;
use crate::workers::Workers;
use crate::{Error, Result};

/// The buffer for one chunk: some hundred names.
const CHUNK: usize = 32 * 1024;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// Opens the directory and reads the first chunk, so that the call itself reports failures.
pub(crate) async fn list(
    connection: &Connection,
    location: FileLocation,
    with_metadata: bool,
) -> Result<impl Stream<Item = Result<ListResponse, Status>> + Send + use<>> {
    let opened = connection.in_tree(move |tree| open(tree, &location));
    let directory = Arc::new(opened.await?);
    let workers = connection.agent.files().clone();
    let first = read_chunk(&workers, &directory, with_metadata).await?;
    let state = (workers, directory, Some(first));
    Ok(stream::try_unfold(
        state,
        move |(workers, directory, ahead)| async move {
            let entries = match ahead {
                Some(entries) => entries,
                None => read_chunk(&workers, &directory, with_metadata).await?,
            };
            if entries.is_empty() {
                return Ok(None);
            }
            Ok(Some((ListResponse { entries }, (workers, directory, None))))
        },
    ))
}

fn open(tree: Tree<'_>, location: &FileLocation) -> Result<OwnedFd> {
    let opened = match location {
        FileLocation::Path { path, follow } => {
            let mut flags = DIRECTORY;
            flags.set(OFlags::NOFOLLOW, !follow);
            tree.open(path, flags, Mode::empty())
        }
        // A new descriptor has its own position.
        FileLocation::Open(file) => openat(file, c".", DIRECTORY, Mode::empty()),
    };
    opened.map_err(Error::operation("list this directory"))
}

/// The next entries. Empty at the end.
async fn read_chunk(
    workers: &Workers,
    directory: &Arc<OwnedFd>,
    with_metadata: bool,
) -> Result<Vec<Entry>> {
    let directory = Arc::clone(directory);
    workers
        .run(move || {
            read(&directory, with_metadata).map_err(Error::operation("list this directory"))
        })
        .await
}

fn read(directory: &OwnedFd, with_metadata: bool) -> Result<Vec<Entry>, Errno> {
    let mut buffer = Vec::with_capacity(CHUNK);
    let mut names = RawDir::new(directory, buffer.spare_capacity_mut());
    let mut entries = Vec::new();
    while let Some(entry) = names.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            entries.push(Entry {
                name: Bytes::copy_from_slice(name.to_bytes()),
                inode: entry.ino(),
                kind: entry.file_type().as_raw_mode(),
                metadata: with_metadata
                    .then(|| metadata::of_entry(directory, name).ok())
                    .flatten(),
            });
        }
        // A chunk with only "." and ".." is not the end.
        if names.is_buffer_empty() && !entries.is_empty() {
            break;
        }
    }
    Ok(entries)
}
