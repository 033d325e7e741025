//! The contents of files, as raw streams.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use protocol::files::{ReadRange, WriteRange, set_written};
use rustix::buffer::spare_capacity;
use rustix::io::{Errno, pread, pwritev};
use splitter::Holder;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::body::Body;

use super::handles::OpenFile;
use crate::connection::{Connection, RequestBody, failed, succeeded};
use crate::workers::Workers;
use crate::{Error, Result};

/// The maximum length of a range. A longer one is truncated, and the client requests the rest.
pub(crate) const MAX_READ_BYTES: u64 = 1 << 40;

/// The number of bytes that are read or written at once.
const CHUNK: usize = 256 * 1024;
/// The number of bytes that are appended at once. It is larger, so that one `write` of an application is one append.
const APPEND_CHUNK: usize = 1024 * 1024;

/// Returns a range of a file. The response headers are sent after the first read, so that a read error fails the request.
pub(crate) async fn read(
    connection: &Arc<Connection>,
    request: &Request<RequestBody>,
) -> Result<Response<Body>> {
    let range = ReadRange::from_headers(request.headers())?;
    let file = connection.handles.get(range.handle)?;
    let mut reader = Reader {
        holder: request.body().holder().clone(),
        workers: connection.agent.files().clone(),
        file,
        offset: range.offset,
        remaining: range.length.min(MAX_READ_BYTES),
        ahead: None,
    };
    let first = reader.next_chunk().await?;
    if reader.remaining == 0 {
        return Ok(succeeded(HeaderMap::new(), Body::new(Full::new(first))));
    }
    let first = stream::iter([Ok(Frame::data(first))]);
    // Only one chunk is read ahead, while HTTP/2 sends the one before.
    let rest = stream::unfold(reader, |mut reader| async move {
        if reader.remaining == 0 {
            return None;
        }
        let frame = match reader.next_chunk().await {
            Ok(chunk) => Frame::data(chunk),
            Err(error) => {
                reader.remaining = 0;
                Frame::trailers(error.to_failure().to_headers())
            }
        };
        Some((Ok::<_, Status>(frame), reader))
    });
    let body = StreamBody::new(first.chain(rest));
    Ok(succeeded(HeaderMap::new(), Body::new(body)))
}

struct Reader {
    holder: Holder,
    workers: Workers,
    file: Arc<OpenFile>,
    offset: u64,
    /// 0 at the end of the range or of the file.
    remaining: u64,
    /// The pending read of the next chunk.
    ahead: Option<JoinHandle<Result<Bytes>>>,
}

impl Reader {
    async fn next_chunk(&mut self) -> Result<Bytes> {
        let length = self.chunk_length();
        let chunk = match self.ahead.take() {
            Some(ahead) => ahead.await,
            None => self.start().await,
        };
        let chunk = chunk.unwrap_or_else(|_| Err(Error::operation("read this file")(Errno::IO)))?;
        self.offset = self.offset.saturating_add(chunk.len() as u64);
        self.remaining -= chunk.len() as u64;
        if chunk.len() < length {
            self.remaining = 0;
        }
        if self.remaining > 0 {
            self.ahead = Some(self.start());
        }
        Ok(chunk)
    }

    fn chunk_length(&self) -> usize {
        usize::try_from(self.remaining).map_or(CHUNK, |rest| rest.min(CHUNK))
    }

    fn start(&self) -> JoinHandle<Result<Bytes>> {
        let (workers, file) = (self.workers.clone(), Arc::clone(&self.file));
        let (offset, length) = (self.offset, self.chunk_length());
        let holder = self.holder.clone();
        let read = move || {
            let chunk = read_chunk(&file, offset, length);
            let chunk = chunk.map_err(Error::operation("read this file"))?;
            Ok(holder.keep(chunk))
        };
        tokio::spawn(async move { workers.run(read).await })
    }
}

/// Reads until there is enough or the file ends.
fn read_chunk(file: &OpenFile, offset: u64, length: usize) -> Result<Bytes, Errno> {
    file.require_allowed()?;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let at = offset.saturating_add(bytes.len() as u64);
        match pread(file, spare_capacity(&mut bytes), at) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            // The bytes read before an error are delivered. The next read returns the error again.
            Err(_) if !bytes.is_empty() => break,
            Err(errno) => return Err(errno),
        }
    }
    // The capacity may be larger than requested.
    bytes.truncate(length);
    Ok(bytes.into())
}

/// Writes the request's body. The response is sent when everything is written, and has the number of written bytes.
pub(crate) async fn write(
    connection: &Arc<Connection>,
    request: Request<RequestBody>,
) -> Result<Response<Body>> {
    let range = WriteRange::from_headers(request.headers())?;
    let file = connection.handles.get(range.handle)?;
    let workers = connection.agent.files().clone();
    let mut body = request.into_body();
    let mut written = 0;
    let mut response = loop {
        let limit = if file.append { APPEND_CHUNK } else { CHUNK };
        let chunk = gather(&mut body, limit).await?;
        if chunk.is_empty() {
            break succeeded(HeaderMap::new(), Body::empty());
        }
        let at = range.offset.saturating_add(written);
        let _charge = body.holder().charge(chunk.iter().map(Bytes::len).sum());
        let (count, outcome) = write_chunk(&workers, &file, at, chunk).await?;
        written += count;
        if let Err(errno) = outcome {
            break failed(&Error::operation("write this file")(errno));
        }
    };
    set_written(response.headers_mut(), written);
    Ok(response)
}

/// Collects data of the body, up to about `limit` bytes. Empty at the end of the body.
async fn gather(body: &mut RequestBody, limit: usize) -> Result<VecDeque<Bytes>> {
    let mut chunk = VecDeque::new();
    let mut length = 0;
    while length < limit {
        let Some(frame) = body.frame().await.transpose()? else {
            break;
        };
        if let Ok(data) = frame.into_data() {
            length += data.len();
            chunk.extend((!data.is_empty()).then_some(data));
        }
    }
    Ok(chunk)
}

async fn write_chunk(
    workers: &Workers,
    file: &Arc<OpenFile>,
    offset: u64,
    chunk: VecDeque<Bytes>,
) -> Result<(u64, Result<(), Errno>)> {
    let file = Arc::clone(file);
    workers
        .run(move || Ok(write_all(&file, offset, chunk)))
        .await
}

/// Returns the number of written bytes and the result.
fn write_all(file: &OpenFile, offset: u64, mut chunk: VecDeque<Bytes>) -> (u64, Result<(), Errno>) {
    /// The kernel's limit of buffers per call.
    const MAX_BUFFERS: usize = 1024;
    if let Err(errno) = file.require_allowed() {
        return (0, Err(errno));
    }
    let mut written: u64 = 0;
    while !chunk.is_empty() {
        let pieces: Vec<IoSlice<'_>> = chunk
            .iter()
            .take(MAX_BUFFERS)
            .map(|piece| IoSlice::new(piece))
            .collect();
        match pwritev(file, &pieces, offset.saturating_add(written)) {
            // The file system is full, although it reports no error.
            Ok(0) => return (written, Err(Errno::NOSPC)),
            Ok(count) => {
                written += count as u64;
                advance(&mut chunk, count);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return (written, Err(errno)),
        }
    }
    (written, Ok(()))
}

fn advance(chunk: &mut VecDeque<Bytes>, mut count: usize) {
    while let Some(piece) = chunk.front_mut() {
        if count < piece.len() {
            piece.advance(count);
            return;
        }
        count -= piece.len();
        chunk.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_write_is_continued() {
        let check = |count: usize, expected: &[&str]| {
            let pieces: [&[u8]; 3] = [b"abc", b"d", b"efgh"];
            let mut chunk: VecDeque<Bytes> = pieces.map(Bytes::from_static).into();
            advance(&mut chunk, count);
            assert_eq!(
                chunk,
                expected
                    .iter()
                    .map(|text| text.as_bytes())
                    .collect::<Vec<_>>()
            );
        };
        check(0, &["abc", "d", "efgh"]);
        check(2, &["c", "d", "efgh"]);
        check(3, &["d", "efgh"]);
        check(5, &["fgh"]);
        check(8, &[]);
    }
}
