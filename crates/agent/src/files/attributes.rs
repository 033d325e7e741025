//! Extended attributes.

use bytes::Bytes;
use protocol::rpc::{Done, GetAttributeResponse, ListAttributesResponse, SetAttributeRequest};
use rustix::buffer::spare_capacity;
use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;

use super::operations::done;
use super::tree::{FileLocation, Tree};
use crate::{Error, Result};

/// The kernel's limit for one value and for a list of names.
const MAX_BYTES: usize = 64 * 1024;

pub(crate) fn get(
    tree: Tree<'_>,
    location: &FileLocation,
    name: &[u8],
) -> Result<GetAttributeResponse> {
    let get = |path: &str| {
        let mut value = Vec::with_capacity(MAX_BYTES);
        getxattr(path, name, spare_capacity(&mut value))?;
        Ok(Bytes::from(value))
    };
    let value = at_path(tree, location, get).map_err(Error::operation("read this attribute"))?;
    Ok(GetAttributeResponse { value })
}

pub(crate) fn list(tree: Tree<'_>, location: &FileLocation) -> Result<ListAttributesResponse> {
    let list = |path: &str| {
        let mut names = Vec::with_capacity(MAX_BYTES);
        listxattr(path, spare_capacity(&mut names))?;
        Ok(names)
    };
    let names: Vec<u8> = at_path(tree, location, list)
        .map_err(Error::operation("list the attributes of this file"))?;
    Ok(ListAttributesResponse {
        names: names
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
            .map(Bytes::copy_from_slice)
            .collect(),
    })
}

pub(crate) fn set(
    tree: Tree<'_>,
    location: &FileLocation,
    request: &SetAttributeRequest,
) -> Result<Done> {
    let mut flags = XattrFlags::empty();
    flags.set(XattrFlags::CREATE, request.create);
    flags.set(XattrFlags::REPLACE, request.replace);
    tree.find_to_change(location)
        .and_then(|file| setxattr(file.as_path(), &*request.name, &request.value, flags))
        .map_err(Error::operation("set this attribute"))
        .map(done)
}

pub(crate) fn remove(tree: Tree<'_>, location: &FileLocation, name: &[u8]) -> Result<Done> {
    tree.find_to_change(location)
        .and_then(|file| removexattr(file.as_path(), name))
        .map_err(Error::operation("remove this attribute"))
        .map(done)
}

fn at_path<T>(
    tree: Tree<'_>,
    location: &FileLocation,
    operation: impl FnOnce(&str) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let file = tree.find(location)?;
    operation(&file.as_path())
}
