//! Files: byte ranges as raw streams, and references to files.

use bytes::Bytes;
use http::HeaderMap;

use crate::rpc::{FileRef, file_ref};
use crate::stream::{require, set};
use crate::{Error, Result};

pub const READ: &str = "/standin.session.v1/files/read";
pub const WRITE: &str = "/standin.session.v1/files/write";

const HANDLE: &str = "standin-handle";
const OFFSET: &str = "standin-offset";
const LENGTH: &str = "standin-length";
const WRITTEN: &str = "standin-written";

/// The maximum of `first_bytes` in the response to an open.
pub const MAX_FIRST_BYTES: u32 = 1024 * 1024;

/// Requests a range of an open file. The body ends early at the end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRange {
    pub handle: u64,
    pub offset: u64,
    pub length: u64,
}

impl ReadRange {
    #[must_use]
    pub fn to_headers(self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        set(&mut headers, HANDLE, self.handle);
        set(&mut headers, OFFSET, self.offset);
        set(&mut headers, LENGTH, self.length);
        headers
    }

    pub fn from_headers(headers: &HeaderMap) -> Result<Self> {
        Ok(Self {
            handle: require(headers, HANDLE, "a handle")?,
            offset: require(headers, OFFSET, "a number of bytes")?,
            length: require(headers, LENGTH, "a number of bytes")?,
        })
    }
}

/// Writes the request's body to an open file, starting at an offset. A file opened for appending ignores the offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteRange {
    pub handle: u64,
    pub offset: u64,
}

impl WriteRange {
    #[must_use]
    pub fn to_headers(self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        set(&mut headers, HANDLE, self.handle);
        set(&mut headers, OFFSET, self.offset);
        headers
    }

    pub fn from_headers(headers: &HeaderMap) -> Result<Self> {
        Ok(Self {
            handle: require(headers, HANDLE, "a handle")?,
            offset: require(headers, OFFSET, "a number of bytes")?,
        })
    }
}

/// Sets how many bytes a `files/write` has written. It is also set on failure: the bytes written before the failure.
pub fn set_written(headers: &mut HeaderMap, written: u64) {
    set(headers, WRITTEN, written);
}

pub fn written(headers: &HeaderMap) -> Result<u64> {
    match require(headers, WRITTEN, "a number of bytes") {
        Err(Error::MissingHeader(_)) => Ok(0),
        found => found,
    }
}

impl FileRef {
    /// A file by its path, following a symbolic link at its end.
    pub fn path(path: impl Into<Bytes>) -> Self {
        Self {
            file: Some(file_ref::File::Path(path.into())),
            no_follow: false,
        }
    }

    /// A file by its path, without following a symbolic link at its end.
    pub fn path_no_follow(path: impl Into<Bytes>) -> Self {
        Self {
            no_follow: true,
            ..Self::path(path)
        }
    }

    /// An open file.
    #[must_use]
    pub fn handle(handle: u64) -> Self {
        Self {
            file: Some(file_ref::File::Handle(handle)),
            no_follow: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn ranges_survive_as_headers() {
        let read = ReadRange {
            handle: u64::MAX,
            offset: 1 << 40,
            length: 0,
        };
        assert_eq!(ReadRange::from_headers(&read.to_headers()), Ok(read));
        let write = WriteRange {
            handle: 1,
            offset: 4096,
        };
        assert_eq!(WriteRange::from_headers(&write.to_headers()), Ok(write));
    }

    #[test]
    fn errors_name_the_missing_or_malformed_header() {
        let check = |headers: &HeaderMap, expected: &str| {
            let error = ReadRange::from_headers(headers).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        let range = ReadRange {
            handle: 1,
            offset: 2,
            length: 3,
        };
        let mut headers = range.to_headers();
        headers.insert(LENGTH, HeaderValue::from_static("-3"));
        check(&headers, "`standin-length` must be a number of bytes");
        headers.remove(LENGTH);
        check(&headers, "no header `standin-length`");
        check(&HeaderMap::new(), "no header `standin-handle`");
    }

    #[test]
    fn nothing_written_needs_no_header() {
        let mut headers = HeaderMap::new();
        assert_eq!(written(&headers), Ok(0));
        set_written(&mut headers, 7);
        assert_eq!(written(&headers), Ok(7));
    }
}
