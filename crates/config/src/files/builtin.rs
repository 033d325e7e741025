//! The built-in lists of local and remote paths, for every mode except `local`.

use super::Surroundings;

/// A machine's programs, libraries, devices and scratch space. With everything below them.
#[rustfmt::skip]
pub(crate) const LOCAL: &[&str] = &[
    "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/opt", "/nix", "/gnu", "/snap", "/boot",
    "/proc", "/sys", "/dev", "/tmp", "/var/tmp", "/var/cache", "/run", "/var/run",
];

/// Configuration and secrets. With everything below them, except what is in [`LOCAL_CONFIGURATION`].
pub(crate) const REMOTE: &[&str] = &["/etc", "/run/secrets", "/var/run/secrets"];

/// Configuration that belongs to programs and libraries of this machine, or to its users: with the target's, a program
/// would not start or not find its own parts. With everything below them.
#[rustfmt::skip]
pub(crate) const LOCAL_CONFIGURATION: &[&str] = &[
    // The loader and what programs are installed.
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload", "/etc/alternatives",
    // Language runtimes. A name may end with a version.
    "/etc/java*", "/etc/python*", "/etc/perl*", "/etc/ld-musl-*", "/etc/node*", "/etc/ruby*", "/etc/php*",
    // TLS libraries and the certificates they trust, which are laid out differently in each distribution.
    "/etc/ssl/openssl.cnf", "/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/pki/tls/openssl.cnf", "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/certs", "/etc/pki/ca-trust", "/etc/ca-certificates", "/etc/ca-certificates.conf", "/etc/crypto-policies",
    "/etc/gnutls",
    // Users, since the process runs as one of this machine.
    "/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/subuid", "/etc/subgid", "/etc/pam.d",
    "/etc/security", "/etc/login.defs", "/etc/sudoers", "/etc/sudoers.d",
    // Shells and tools of the developer.
    "/etc/profile", "/etc/profile.d", "/etc/bash.bashrc", "/etc/bashrc", "/etc/bash_completion.d", "/etc/inputrc",
    "/etc/zsh", "/etc/zshrc", "/etc/zshenv", "/etc/terminfo", "/etc/gitconfig", "/etc/vim", "/etc/fonts",
];

#[derive(Debug, Clone)]
pub(super) struct BuiltIn {
    /// Paths that are local because of the user and the working directory of the process.
    own: Vec<Vec<u8>>,
    /// Their parent folders: programs check each part of a path, and these may not exist at the target.
    above: Vec<Vec<u8>>,
}

impl BuiltIn {
    pub(super) fn new(surroundings: &Surroundings) -> Self {
        let Surroundings {
            home,
            working_directory,
            temporary,
            code,
        } = surroundings;
        let own: Vec<Vec<u8>> = [home, working_directory, temporary]
            .into_iter()
            .flatten()
            .chain(code)
            .map(|path| without_last_slash(path).to_vec())
            // The root would make everything local, so a home or working directory of `/` is ignored.
            .filter(|path| path.len() > 1 && path.starts_with(b"/"))
            .collect();
        let above = own.iter().flat_map(|path| folders_above(path)).collect();
        Self { own, above }
    }

    /// `None` if no list applies, so that the mode decides.
    pub(super) fn is_remote(&self, path: &[u8]) -> Option<bool> {
        if REMOTE.iter().any(|folder| is_in(path, folder.as_bytes())) {
            // A working directory in `/etc` is still the process's own.
            let local = self.is_own(path) || is_local_configuration(path);
            return Some(!local);
        }
        let local = LOCAL.iter().any(|folder| is_in(path, folder.as_bytes()))
            || self.is_own(path)
            || is_shared_library(path);
        local.then_some(false)
    }

    fn is_own(&self, path: &[u8]) -> bool {
        self.own.iter().any(|folder| is_in(path, folder))
            || self.above.iter().any(|folder| folder == path)
    }
}

fn is_local_configuration(path: &[u8]) -> bool {
    LOCAL_CONFIGURATION
        .iter()
        .any(|known| match known.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix.as_bytes()),
            None => is_in(path, known.as_bytes()),
        })
}

/// Whether `path` is `folder` or something in it.
fn is_in(path: &[u8], folder: &[u8]) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

/// `libx.so` and `libx.so.1.2`, wherever they are: code that the process loads.
fn is_shared_library(path: &[u8]) -> bool {
    let end = path
        .iter()
        .rposition(|byte| !(byte.is_ascii_digit() || *byte == b'.'))
        .map_or(0, |last| last + 1);
    let (name, version) = path.split_at(end);
    name.ends_with(b".so") && (version.is_empty() || version.starts_with(b"."))
}

fn folders_above(path: &[u8]) -> Vec<Vec<u8>> {
    let slashes = path.iter().enumerate().skip(1);
    slashes
        .filter(|(_, byte)| **byte == b'/')
        .map(|(index, _)| path[..index].to_vec())
        .collect()
}

fn without_last_slash(path: &[u8]) -> &[u8] {
    match path {
        [shorter @ .., b'/'] if !shorter.is_empty() => shorter,
        _ => path,
    }
}
