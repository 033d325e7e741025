//! The bytes of files, as raw streams.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use protocol::files::{ReadRange, WriteRange, set_written};
use rustix::buffer::spare_capacity;
use rustix::io::{Errno, pread, pwritev};
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::body::Body;

use super::handles::OpenFile;
use crate::connection::{Connection, failed, succeeded};
use crate::workers::Workers;
use crate::{Error, Result};

/// A longer range is cut: a client asks again for the rest, and a lost one is not read for nobody.
pub(crate) const READ_BYTES: u64 = 1 << 40;

/// What is read or written at once.
const CHUNK: usize = 256 * 1024;
/// What is appended at once: one `write` of an application arrives whole and is appended whole.
const APPEND_CHUNK: usize = 1024 * 1024;

/// Answers a range. The headers wait for the first bytes, so a failure to read is a failed request.
pub(crate) async fn read(
    connection: &Arc<Connection>,
    request: &Request<Incoming>,
) -> Result<Response<Body>> {
    let range = ReadRange::from_headers(request.headers())?;
    let file = connection.handles.get(range.handle)?;
    let mut reader = Reader {
        workers: connection.agent.files().clone(),
        file,
        offset: range.offset,
        remaining: range.length.min(READ_BYTES),
        ahead: None,
    };
    let first = reader.next_chunk().await?;
    if reader.remaining == 0 {
        return Ok(succeeded(HeaderMap::new(), Body::new(Full::new(first))));
    }
    let first = stream::iter([Ok(Frame::data(first))]);
    // One chunk is read ahead while HTTP/2 sends the one before, and no further.
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
    workers: Workers,
    file: Arc<OpenFile>,
    offset: u64,
    /// 0 at the end of the range and of the file.
    remaining: u64,
    /// The next chunk, which is being read.
    ahead: Option<JoinHandle<Result<Bytes>>>,
}

impl Reader {
    async fn next_chunk(&mut self) -> Result<Bytes> {
        let wanted = self.wanted();
        let chunk = match self.ahead.take() {
            Some(ahead) => ahead.await,
            None => self.start().await,
        };
        let chunk = chunk.unwrap_or_else(|_| Err(Error::operation("read this file")(Errno::IO)))?;
        self.offset = self.offset.saturating_add(chunk.len() as u64);
        self.remaining -= chunk.len() as u64;
        if chunk.len() < wanted {
            self.remaining = 0;
        }
        if self.remaining > 0 {
            self.ahead = Some(self.start());
        }
        Ok(chunk)
    }

    fn wanted(&self) -> usize {
        usize::try_from(self.remaining).map_or(CHUNK, |rest| rest.min(CHUNK))
    }

    fn start(&self) -> JoinHandle<Result<Bytes>> {
        let (workers, file) = (self.workers.clone(), Arc::clone(&self.file));
        let (offset, wanted) = (self.offset, self.wanted());
        let read =
            move || read_chunk(&file, offset, wanted).map_err(Error::operation("read this file"));
        tokio::spawn(async move { workers.run(read).await })
    }
}

/// Reads until there is enough or the file ends.
fn read_chunk(file: &OpenFile, offset: u64, wanted: usize) -> Result<Bytes, Errno> {
    let mut bytes = Vec::with_capacity(wanted);
    while bytes.len() < wanted {
        let at = offset.saturating_add(bytes.len() as u64);
        match pread(file, spare_capacity(&mut bytes), at) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            // What was read before a failure is delivered; the next read meets the failure again.
            Err(_) if !bytes.is_empty() => break,
            Err(errno) => return Err(errno),
        }
    }
    // The allocator may have given more room than was asked for.
    bytes.truncate(wanted);
    Ok(bytes.into())
}

/// Writes the request's body. The answer comes when everything is written, or says how much was.
pub(crate) async fn write(
    connection: &Arc<Connection>,
    request: Request<Incoming>,
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
        let (count, outcome) = write_on(&workers, &file, at, chunk).await?;
        written += count;
        if let Err(errno) = outcome {
            break failed(&Error::operation("write this file")(errno));
        }
    };
    set_written(response.headers_mut(), written);
    Ok(response)
}

/// Collects what arrives, up to about `limit` bytes. Empty at the end of the body.
async fn gather(body: &mut Incoming, limit: usize) -> Result<VecDeque<Bytes>> {
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

async fn write_on(
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

/// How much was written, and how it ended.
fn write_all(file: &OpenFile, offset: u64, mut chunk: VecDeque<Bytes>) -> (u64, Result<(), Errno>) {
    /// The kernel's limit of pieces per call.
    const PIECES: usize = 1024;
    let mut written: u64 = 0;
    while !chunk.is_empty() {
        let pieces: Vec<IoSlice<'_>> = chunk
            .iter()
            .take(PIECES)
            .map(|piece| IoSlice::new(piece))
            .collect();
        match pwritev(file, &pieces, offset.saturating_add(written)) {
            // Nothing more fits, and no reason is given.
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
    fn a_short_write_goes_on_where_it_stopped() {
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
