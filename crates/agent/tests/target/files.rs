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
    AccessMode, AccessRequest, AllocateRequest, CloseRequest, Entry, FileRef, GetAttributeRequest,
    LinkRequest, ListAttributesRequest, ListRequest, MakeDirectoryRequest, MakeNodeRequest,
    Metadata, NewTime, OpenRequest, ReadLinkRequest, RemoveAttributeRequest,
    RemoveDirectoryRequest, RenameRequest, ResolvePathRequest, SeekRequest, SetAttributeRequest,
    SetModeRequest, SetOwnerRequest, SetTimesRequest, StatFilesystemRequest, StatRequest,
    SymbolicLinkRequest, SyncRequest, Time, TruncateRequest, UnlinkRequest,
};
use tonic::Status;

use crate::client::{Client, errno};
use crate::environment::{Target, target};

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

async fn stat(client: &Client, file_ref: FileRef) -> Result<Metadata, Status> {
    let file_ref = Some(file_ref);
    let response = client.files().stat(StatRequest { file: file_ref }).await?;
    Ok(response.into_inner().metadata.expect("metadata"))
}

async fn list(client: &Client, file_ref: FileRef) -> Result<Vec<Entry>, Status> {
    let request = ListRequest {
        file: Some(file_ref),
        without_metadata: false,
    };
    let mut messages = client.files().list(request).await?.into_inner();
    let mut entries = Vec::new();
    while let Some(message) = messages.message().await? {
        entries.extend(message.entries);
    }
    Ok(entries)
}

async fn target_and_client() -> (Target, Client) {
    let target = target();
    let client = target.client().await;
    (target, client)
}
