//! Hashes that identify build results by their inputs.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::ImageError;
use super::tree::{Content, Entry};

/// A hash over a series of values. Each value is hashed with its length, so that different series never give the same
/// bytes.
pub(crate) struct Fingerprint {
    hash: Sha256,
}

impl Fingerprint {
    /// The purpose separates equal inputs of different kinds.
    pub(crate) fn new(purpose: &str) -> Self {
        let mut fingerprint = Self {
            hash: Sha256::new(),
        };
        fingerprint.text(purpose);
        fingerprint
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.hash.update(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(crate) fn path(&mut self, path: &Path) {
        self.bytes(path.as_os_str().as_bytes());
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.hash.update(number.to_le_bytes());
    }

    pub(super) fn entry(&mut self, entry: &Entry) -> Result<(), ImageError> {
        match entry {
            Entry::Directory { mode } => {
                self.text("directory");
                self.number(u64::from(*mode));
            }
            Entry::Link { target } => {
                self.text("link");
                self.path(target);
            }
            Entry::File { content, mode } => {
                self.text("file");
                self.number(u64::from(*mode));
                self.content(content)?;
            }
        }
        Ok(())
    }

    fn content(&mut self, content: &Content) -> Result<(), ImageError> {
        match content {
            Content::InMemory(bytes) => self.bytes(bytes),
            Content::OnDisk { path, size } => {
                self.number(*size);
                let copied = File::open(path)
                    .and_then(|file| io::copy(&mut file.take(*size), &mut self.hash))
                    .map_err(ImageError::file("read", path))?;
                if copied != *size {
                    return Err(ImageError::FileChanged {
                        path: path.clone(),
                        expected: *size,
                    });
                }
            }
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> String {
        format!("{:x}", self.hash.finalize())
    }
}

/// A writer that also computes the hash and the length of what is written.
pub(super) struct HashingWriter<Inner> {
    inner: Inner,
    hash: Sha256,
    length: u64,
}

impl<Inner: Write> HashingWriter<Inner> {
    pub(super) fn new(inner: Inner) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
            length: 0,
        }
    }

    /// The hash and the length of everything that was written.
    pub(super) fn finish(self) -> (String, u64) {
        (format!("{:x}", self.hash.finalize()), self.length)
    }
}

impl<Inner: Write> Write for HashingWriter<Inner> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(buffer)?;
        self.hash.update(&buffer[..written]);
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
