//! The canonical path of a file, as the target sees it: without symbolic links.
//!
//! The link of a descriptor in `/proc` is no help: it is a path as seen by the reader, which differs in another mount
//! namespace or with another root. So the symbolic links are resolved one by one.

use bytes::Bytes;
use protocol::rpc::ResolvePathResponse;
use rustix::fs::readlinkat;
use rustix::io::Errno;

use super::tree::Tree;
use crate::{Error, Result};

/// The maximum number of symbolic links that the kernel follows.
const MAX_LINKS: u32 = 40;

pub(crate) fn resolve_path(tree: Tree<'_>, path: &[u8]) -> Result<ResolvePathResponse> {
    let canonical = tree
        .visible_path(path)
        .map_err(Error::operation("resolve this path"))?;
    Ok(ResolvePathResponse {
        path: Bytes::from(canonical),
    })
}

/// The path without symbolic links.
pub(super) fn canonicalize(tree: Tree<'_>, path: &[u8]) -> Result<Vec<u8>, Errno> {
    walk(path, |path| match tree.find_entry(path) {
        Ok(found) => match readlinkat(&found, c"", Vec::new()) {
            Ok(content) => Ok(Some(content.into_bytes())),
            // The errors for a descriptor that is not a symbolic link.
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(errno) => Err(errno),
        },
        Err(errno) => Err(errno),
    })
}

/// `read_link` returns the content of a symbolic link, or `None` for another file.
fn walk(
    path: &[u8],
    read_link: impl Fn(&[u8]) -> Result<Option<Vec<u8>>, Errno>,
) -> Result<Vec<u8>, Errno> {
    if !path.starts_with(b"/") {
        return Err(Errno::INVAL);
    }
    let mut rest = components(path);
    let mut done: Vec<u8> = Vec::new();
    let mut links = 0;
    while let Some(name) = rest.pop() {
        let parent = done.len();
        if name == b".." {
            done.truncate(done.iter().rposition(|byte| *byte == b'/').unwrap_or(0));
            continue;
        }
        done.push(b'/');
        done.extend_from_slice(&name);
        let Some(content) = read_link(&done)? else {
            continue;
        };
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::LOOP);
        }
        let kept = if content.starts_with(b"/") { 0 } else { parent };
        done.truncate(kept);
        rest.extend(components(&content));
    }
    if done.is_empty() {
        done.push(b'/');
    }
    Ok(done)
}

/// The components of a path, in reverse order.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let components = path.split(|byte| *byte == b'/').rev();
    components
        .filter(|name| !name.is_empty() && *name != b".")
        .map(<[u8]>::to_vec)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbolic_links_are_resolved() {
        let links = |path: &[u8]| match path {
            b"/link" => Ok(Some(b"srv/data".to_vec())),
            b"/srv/up" => Ok(Some(b"../srv/./data/".to_vec())),
            b"/srv/data/room" => Ok(Some(b"/people".to_vec())),
            b"/round" => Ok(Some(b"/round".to_vec())),
            b"/missing" => Err(Errno::NOENT),
            _ => Ok(None),
        };
        let check = |path: &str, expected: Result<&str, Errno>| {
            let found = walk(path.as_bytes(), links);
            let found = found.map(|path| String::from_utf8(path).unwrap());
            assert_eq!(found, expected.map(str::to_owned), "{path}");
        };
        check("/", Ok("/"));
        check("/a//b/./c/", Ok("/a/b/c"));
        check("/a/../..", Ok("/"));
        check("/link/x", Ok("/srv/data/x"));
        check("/link/../x", Ok("/srv/x"));
        check("/srv/up/room/ada", Ok("/people/ada"));
        check("/round/x", Err(Errno::LOOP));
        check("/missing/x", Err(Errno::NOENT));
        check("relative", Err(Errno::INVAL));
    }
}
