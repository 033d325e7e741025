//! The archive of an image: a tar in the format of `docker save`, with one layer that is itself a tar.
//!
//! The layer is streamed from the disk into the file. Its header precedes it and contains its hash and its size, so space
//! is left for the header, which is written afterwards.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tar::{Archive, Builder, EntryType, Header};

use super::fingerprint::HashingWriter;
use super::tree::{Content, Entry, Tree};
use super::{Configuration, ImageError};

/// Incremented whenever the same sources give different bytes, so that caches do not keep the old ones.
pub(super) const FORMAT_VERSION: u64 = 1;

const BLOCK: u64 = 512;
const MANIFEST: &str = "manifest.json";

/// All images have the same date: the build time would make each build of the same sources a different image.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// An image in a file, ready for `ctr images import` or `podman load`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageArchive {
    path: PathBuf,
    reference: String,
    id: String,
    size: u64,
}

impl ImageArchive {
    /// Opens an existing archive and reads its manifest, without reading its layer.
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        let not_an_archive = |reason: String| ImageError::NotAnArchive {
            path: path.to_path_buf(),
            reason,
        };
        let file = File::open(path).map_err(ImageError::file("open", path))?;
        let size = file
            .metadata()
            .map_err(ImageError::file("read", path))?
            .len();
        let manifest = read_manifest(file).map_err(|error| not_an_archive(error.to_string()))?;
        let [image] = manifest.as_slice() else {
            return Err(not_an_archive("it does not hold one image".to_owned()));
        };
        let (Some(hash), Some(reference)) =
            (image.config.strip_suffix(".json"), image.repo_tags.first())
        else {
            return Err(not_an_archive("its image has no name".to_owned()));
        };
        Ok(Self {
            path: path.to_path_buf(),
            reference: reference.clone(),
            id: format!("sha256:{hash}"),
            size,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The image's name in pods.
    pub fn reference(&self) -> &str {
        &self.reference
    }

    /// The digest of the image's configuration, which container runtimes show as the image's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ManifestImage {
    config: String,
    repo_tags: Vec<String>,
    layers: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ImageDescription<'a> {
    architecture: &'static str,
    os: &'static str,
    created: &'static str,
    config: &'a Configuration,
    rootfs: RootFilesystemDescription,
    history: [HistoryStep; 1],
}

#[derive(Debug, Serialize)]
struct RootFilesystemDescription {
    #[serde(rename = "type")]
    kind: &'static str,
    diff_ids: [String; 1],
}

#[derive(Debug, Serialize)]
struct HistoryStep {
    created: &'static str,
    created_by: &'static str,
}

/// The OCI name of this machine's architecture.
pub(super) fn architecture() -> Result<&'static str, ImageError> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        machine => Err(ImageError::Architecture { machine }),
    }
}

/// Writes the archive directly to the path. A failure leaves a partial file.
pub(super) fn write(
    reference: &str,
    tree: &Tree,
    configuration: &Configuration,
    path: &Path,
) -> Result<(), ImageError> {
    let architecture = architecture()?;
    let writing = |error| ImageError::file("write", path)(error);
    let mut file = File::create(path).map_err(ImageError::file("create", path))?;
    let (layer_hash, layer_size) = write_layer(tree, &mut file, path)?;

    let description = serde_json::to_vec(&ImageDescription {
        architecture,
        os: "linux",
        created: CREATED,
        config: configuration,
        rootfs: RootFilesystemDescription {
            kind: "layers",
            diff_ids: [format!("sha256:{layer_hash}")],
        },
        history: [HistoryStep {
            created: CREATED,
            created_by: "lab",
        }],
    })?;
    // The parts are named by their hashes: containerd distinguishes the parts of archives that are imported at the same
    // time only by these names.
    let description_name = format!("{:x}.json", Sha256::digest(&description));
    let layer_name = format!("{layer_hash}.tar");
    let manifest = serde_json::to_vec(&[ManifestImage {
        config: description_name.clone(),
        repo_tags: vec![reference.to_owned()],
        layers: vec![layer_name.clone()],
    }])?;

    let layer_header =
        regular_file_header(Some(&layer_name), layer_size, 0o644).map_err(writing)?;
    file.rewind()
        .and_then(|()| file.write_all(layer_header.as_bytes()))
        .and_then(|()| file.seek(SeekFrom::Start(BLOCK + layer_size.next_multiple_of(BLOCK))))
        .map_err(writing)?;
    let mut builder = Builder::new(&file);
    for (name, content) in [
        (description_name.as_str(), &description),
        (MANIFEST, &manifest),
    ] {
        regular_file_header(None, content.len() as u64, 0o644)
            .and_then(|mut header| builder.append_data(&mut header, name, content.as_slice()))
            .map_err(writing)?;
    }
    builder.finish().map_err(writing)
}

/// Writes the layer after the space for its header, and returns its hash and size.
fn write_layer(tree: &Tree, file: &mut File, path: &Path) -> Result<(String, u64), ImageError> {
    let writing = |error| ImageError::file("write", path)(error);
    file.seek(SeekFrom::Start(BLOCK)).map_err(writing)?;
    let buffered = BufWriter::with_capacity(1 << 18, file);
    let mut builder = Builder::new(HashingWriter::new(buffered));
    for (entry_path, entry) in tree.entries() {
        append_entry(&mut builder, entry_path, entry, path)?;
    }
    let mut layer = builder.into_inner().map_err(writing)?;
    layer.flush().map_err(writing)?;
    Ok(layer.finish())
}

fn append_entry(
    builder: &mut Builder<impl Write>,
    path: &Path,
    entry: &Entry,
    archive: &Path,
) -> Result<(), ImageError> {
    let writing = |error| ImageError::file("write", archive)(error);
    match entry {
        Entry::Directory { mode } => {
            let mut header = header(EntryType::Directory, 0, *mode);
            builder
                .append_data(&mut header, path, io::empty())
                .map_err(writing)
        }
        Entry::Link { target } => {
            let mut header = header(EntryType::Symlink, 0, 0o777);
            builder
                .append_link(&mut header, path, target)
                .map_err(writing)
        }
        Entry::File {
            content: Content::InMemory(bytes),
            mode,
        } => {
            let mut header = header(EntryType::Regular, bytes.len() as u64, *mode);
            builder
                .append_data(&mut header, path, bytes.as_slice())
                .map_err(writing)
        }
        Entry::File {
            content: Content::OnDisk { path: source, size },
            mode,
        } => {
            let file = File::open(source).map_err(ImageError::file("open", source))?;
            // The header contains the size, so exactly as many bytes must follow.
            let mut reader = CountingReader {
                inner: file.take(*size),
                length: 0,
            };
            let mut header = header(EntryType::Regular, *size, *mode);
            builder
                .append_data(&mut header, path, &mut reader)
                .map_err(writing)?;
            if reader.length == *size {
                return Ok(());
            }
            Err(ImageError::FileChanged {
                path: source.clone(),
                expected: *size,
            })
        }
    }
}

struct CountingReader<Inner> {
    inner: Inner,
    length: u64,
}

impl<Inner: Read> Read for CountingReader<Inner> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.length += length as u64;
        Ok(length)
    }
}

/// A header without owner and date.
fn header(kind: EntryType, size: u64, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn regular_file_header(name: Option<&str>, size: u64, mode: u32) -> io::Result<Header> {
    let mut header = header(EntryType::Regular, size, mode);
    if let Some(name) = name {
        header.set_path(name)?;
    }
    header.set_cksum();
    Ok(header)
}

fn read_manifest(file: File) -> io::Result<Vec<ManifestImage>> {
    for entry in Archive::new(file).entries_with_seek()? {
        let entry = entry?;
        if entry.path()?.as_os_str() == MANIFEST {
            return Ok(serde_json::from_reader(entry)?);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        format!("it has no {MANIFEST}"),
    ))
}
