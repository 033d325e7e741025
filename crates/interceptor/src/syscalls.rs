//! The intercepted system calls, and their numbers on this architecture.

/// A system call that may be intercepted. Variants are named after the kernel's calls, so that they can be looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(
        dead_code,
        reason = "newer architectures have only the newer of calls that are alike"
    )
)]
pub(crate) enum Call {
    // Processes.
    Execve,
    ExecveAt,
    ExitGroup,
    // Changes of the root directory or mount namespace.
    Chroot,
    PivotRoot,
    SetNamespace,
    // Files.
    Open,
    OpenAt,
    OpenAt2,
    Creat,
    Stat,
    Lstat,
    NewFstatAt,
    Statx,
    Access,
    FaccessAt,
    FaccessAt2,
    Readlink,
    ReadlinkAt,
    Statfs,
    Mkdir,
    MkdirAt,
    Mknod,
    MknodAt,
    Rmdir,
    Unlink,
    UnlinkAt,
    Rename,
    RenameAt,
    RenameAt2,
    Link,
    LinkAt,
    Symlink,
    SymlinkAt,
    Chmod,
    FchmodAt,
    FchmodAt2,
    Chown,
    Lchown,
    FchownAt,
    Utime,
    Utimes,
    FutimesAt,
    UtimensAt,
    Truncate,
    SetXattr,
    LsetXattr,
    GetXattr,
    LgetXattr,
    ListXattr,
    LlistXattr,
    RemoveXattr,
    LremoveXattr,
    SetXattrAt,
    GetXattrAt,
    ListXattrAt,
    RemoveXattrAt,
    FileGetAttributes,
    FileSetAttributes,
    NameToHandleAt,
    InotifyAddWatch,
    FanotifyMark,
    Chdir,
    Fchdir,
    Getcwd,
    // Connections.
    Socket,
    Connect,
    Bind,
    Listen,
    Accept,
    Accept4,
    GetPeerName,
    GetSocketName,
    GetSocketOption,
    SendTo,
    SendMessage,
    SendMessages,
    ReceiveFrom,
    ReceiveMessage,
    ReceiveMessages,
    // Host name.
    Uname,
    SetHostname,
    SetDomainName,
}

/// Calls that are intercepted for the same reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    Process,
    /// Calls that change the file tree that a process sees.
    Root,
    Files,
    Outgoing,
    Incoming,
    /// Calls about connections in both directions.
    Sockets,
    Hostname,
}

impl Call {
    pub(crate) fn group(self) -> Group {
        match self {
            Self::Execve | Self::ExecveAt | Self::ExitGroup => Group::Process,
            Self::Chroot | Self::PivotRoot | Self::SetNamespace => Group::Root,
            Self::Connect | Self::GetSocketOption => Group::Outgoing,
            Self::Bind | Self::Listen | Self::Accept | Self::Accept4 => Group::Incoming,
            Self::Socket
            | Self::GetPeerName
            | Self::GetSocketName
            | Self::SendTo
            | Self::SendMessage
            | Self::SendMessages
            | Self::ReceiveFrom
            | Self::ReceiveMessage
            | Self::ReceiveMessages => Group::Sockets,
            Self::Uname | Self::SetHostname | Self::SetDomainName => Group::Hostname,
            _ => Group::Files,
        }
    }

    /// Whether the operation must not be performed again when the call is repeated after a signal. Most calls about
    /// connections track repetitions themselves.
    pub(crate) fn must_not_repeat(self) -> bool {
        self.group() == Group::Files || matches!(self, Self::Bind | Self::Listen)
    }

    pub(crate) fn by_number(number: libc::c_int) -> Option<Self> {
        // A linear search of eighty entries is faster than hashing; the most frequent calls come first.
        TABLE
            .iter()
            .find(|(known, _)| *known == libc::c_long::from(number))
            .map(|(_, call)| *call)
    }
}

/// `AUDIT_ARCH_X86_64`.
#[cfg(target_arch = "x86_64")]
pub(crate) const NATIVE_ARCHITECTURE: u32 = 0xc000_003e;
/// `AUDIT_ARCH_AARCH64`.
#[cfg(target_arch = "aarch64")]
pub(crate) const NATIVE_ARCHITECTURE: u32 = 0xc000_00b7;

/// Newer calls have the same number on all architectures: since Linux 6.6, 6.13 and 6.17.
const FCHMODAT2: libc::c_long = 452;
const SETXATTRAT: libc::c_long = 463;
const GETXATTRAT: libc::c_long = 464;
const LISTXATTRAT: libc::c_long = 465;
const REMOVEXATTRAT: libc::c_long = 466;
const FILE_GETATTR: libc::c_long = 468;
const FILE_SETATTR: libc::c_long = 469;

#[cfg(target_arch = "x86_64")]
pub(crate) const TABLE: &[(libc::c_long, Call)] =
    &join_path::<{ COMMON.len() + OLD.len() }>(COMMON, OLD);
#[cfg(target_arch = "aarch64")]
pub(crate) const TABLE: &[(libc::c_long, Call)] = COMMON;

#[cfg(target_arch = "x86_64")]
const fn join_path<const LENGTH: usize>(
    first: &[(libc::c_long, Call)],
    second: &[(libc::c_long, Call)],
) -> [(libc::c_long, Call); LENGTH] {
    let mut all = [(0, Call::Open); LENGTH];
    let mut index = 0;
    while index < LENGTH {
        all[index] = if index < first.len() {
            first[index]
        } else {
            second[index - first.len()]
        };
        index += 1;
    }
    all
}

/// Calls of all architectures.
#[rustfmt::skip] // A table is read by its columns.
const COMMON: &[(libc::c_long, Call)] = &[
    (libc::SYS_openat,            Call::OpenAt),
    (libc::SYS_newfstatat,        Call::NewFstatAt),
    (libc::SYS_statx,             Call::Statx),
    (libc::SYS_readlinkat,        Call::ReadlinkAt),
    (libc::SYS_faccessat,         Call::FaccessAt),
    (libc::SYS_faccessat2,        Call::FaccessAt2),
    (libc::SYS_connect,           Call::Connect),
    (libc::SYS_getsockopt,        Call::GetSocketOption),
    (libc::SYS_getpeername,       Call::GetPeerName),
    (libc::SYS_getsockname,       Call::GetSocketName),
    (libc::SYS_sendto,            Call::SendTo),
    (libc::SYS_sendmsg,           Call::SendMessage),
    (libc::SYS_sendmmsg,          Call::SendMessages),
    (libc::SYS_recvfrom,          Call::ReceiveFrom),
    (libc::SYS_recvmsg,           Call::ReceiveMessage),
    (libc::SYS_recvmmsg,          Call::ReceiveMessages),
    (libc::SYS_socket,            Call::Socket),
    (libc::SYS_accept4,           Call::Accept4),
    (libc::SYS_accept,            Call::Accept),
    (libc::SYS_bind,              Call::Bind),
    (libc::SYS_listen,            Call::Listen),
    (libc::SYS_openat2,           Call::OpenAt2),
    (libc::SYS_execve,            Call::Execve),
    (libc::SYS_execveat,          Call::ExecveAt),
    (libc::SYS_exit_group,        Call::ExitGroup),
    (libc::SYS_statfs,            Call::Statfs),
    (libc::SYS_mkdirat,           Call::MkdirAt),
    (libc::SYS_mknodat,           Call::MknodAt),
    (libc::SYS_unlinkat,          Call::UnlinkAt),
    (libc::SYS_renameat2,         Call::RenameAt2),
    (libc::SYS_linkat,            Call::LinkAt),
    (libc::SYS_symlinkat,         Call::SymlinkAt),
    (libc::SYS_fchmodat,          Call::FchmodAt),
    (FCHMODAT2,                   Call::FchmodAt2),
    (libc::SYS_fchownat,          Call::FchownAt),
    (libc::SYS_utimensat,         Call::UtimensAt),
    (libc::SYS_truncate,          Call::Truncate),
    (libc::SYS_setxattr,          Call::SetXattr),
    (libc::SYS_lsetxattr,         Call::LsetXattr),
    (libc::SYS_getxattr,          Call::GetXattr),
    (libc::SYS_lgetxattr,         Call::LgetXattr),
    (libc::SYS_listxattr,         Call::ListXattr),
    (libc::SYS_llistxattr,        Call::LlistXattr),
    (libc::SYS_removexattr,       Call::RemoveXattr),
    (libc::SYS_lremovexattr,      Call::LremoveXattr),
    (SETXATTRAT,                  Call::SetXattrAt),
    (GETXATTRAT,                  Call::GetXattrAt),
    (LISTXATTRAT,                 Call::ListXattrAt),
    (REMOVEXATTRAT,               Call::RemoveXattrAt),
    (FILE_GETATTR,                Call::FileGetAttributes),
    (FILE_SETATTR,                Call::FileSetAttributes),
    (libc::SYS_name_to_handle_at, Call::NameToHandleAt),
    (libc::SYS_inotify_add_watch, Call::InotifyAddWatch),
    (libc::SYS_fanotify_mark,     Call::FanotifyMark),
    (libc::SYS_chroot,            Call::Chroot),
    (libc::SYS_pivot_root,        Call::PivotRoot),
    (libc::SYS_setns,             Call::SetNamespace),
    (libc::SYS_chdir,             Call::Chdir),
    (libc::SYS_fchdir,            Call::Fchdir),
    (libc::SYS_getcwd,            Call::Getcwd),
    (libc::SYS_uname,             Call::Uname),
    (libc::SYS_sethostname,       Call::SetHostname),
    (libc::SYS_setdomainname,     Call::SetDomainName),
    (libc::SYS_renameat,          Call::RenameAt),
];

/// Calls that newer architectures no longer have.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip] // A table is read by its columns.
const OLD: &[(libc::c_long, Call)] = &[
    (libc::SYS_open,              Call::Open),
    (libc::SYS_creat,             Call::Creat),
    (libc::SYS_stat,              Call::Stat),
    (libc::SYS_lstat,             Call::Lstat),
    (libc::SYS_access,            Call::Access),
    (libc::SYS_readlink,          Call::Readlink),
    (libc::SYS_mkdir,             Call::Mkdir),
    (libc::SYS_mknod,             Call::Mknod),
    (libc::SYS_rmdir,             Call::Rmdir),
    (libc::SYS_unlink,            Call::Unlink),
    (libc::SYS_rename,            Call::Rename),
    (libc::SYS_link,              Call::Link),
    (libc::SYS_symlink,           Call::Symlink),
    (libc::SYS_chmod,             Call::Chmod),
    (libc::SYS_chown,             Call::Chown),
    (libc::SYS_lchown,            Call::Lchown),
    (libc::SYS_utime,             Call::Utime),
    (libc::SYS_utimes,            Call::Utimes),
    (libc::SYS_futimesat,         Call::FutimesAt),
];
