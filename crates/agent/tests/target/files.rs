//! The target's files, with the target's permissions.

mod metadata;
mod names;
mod opening;
mod writing;

use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use bytes::Bytes;
use protocol::rpc::{
    AccessMode, AccessRequest, AllocateRequest, CloseRequest, Entry, GetAttributeRequest,
    LinkRequest, ListAttributesRequest, ListRequest, MakeDirectoryRequest, MakeNodeRequest,
    Metadata, NewTime, OpenRequest, Place, ReadLinkRequest, RemoveAttributeRequest,
    RemoveDirectoryRequest, RenameRequest, SeekRequest, SetAttributeRequest, SetModeRequest,
    SetOwnerRequest, SetTimesRequest, StatFilesystemRequest, StatRequest, SymbolicLinkRequest,
    SyncRequest, Time, TruncateRequest, UnlinkRequest,
};
use tonic::Status;

use crate::client::{Client, errno};
use crate::world::{Target, target};

fn open(path: &str) -> OpenRequest {
    OpenRequest {
        path: path.to_owned().into(),
        ..OpenRequest::default()
    }
}

fn create(path: &str) -> OpenRequest {
    OpenRequest {
        access_mode: AccessMode::ReadWrite.into(),
        create: true,
        mode: 0o644,
        ..open(path)
    }
}

async fn stat(client: &Client, place: Place) -> Result<Metadata, Status> {
    let place = Some(place);
    let answer = client.files().stat(StatRequest { place }).await?;
    Ok(answer.into_inner().metadata.expect("metadata"))
}

async fn list(client: &Client, place: Place) -> Result<Vec<Entry>, Status> {
    let request = ListRequest {
        place: Some(place),
        without_metadata: false,
    };
    let mut pieces = client.files().list(request).await?.into_inner();
    let mut entries = Vec::new();
    while let Some(piece) = pieces.message().await? {
        entries.extend(piece.entries);
    }
    Ok(entries)
}

async fn in_data() -> Option<(Target, Client)> {
    let target = target()?;
    let client = target.client().await;
    Some((target, client))
}
