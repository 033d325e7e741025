//! Decides which programs run outside of the session.

use std::collections::HashSet;

use crate::settings::Settings;

/// Programs that build software or fetch its parts. With the target's files or network they would build something else.
#[rustfmt::skip]
pub(crate) const BUILD_TOOLS: &[&str] = &[
    // Compilers, assemblers, linkers and the programs they start.
    "as", "asm", "cc", "cc1", "cc1plus", "c++", "cpp", "g++", "gcc", "clang", "clang++", "collect2", "ld", "ld.bfd",
    "ld.gold", "ld.lld", "lld", "mold", "lto-wrapper", "ar", "ranlib", "strip", "objcopy", "rustc", "rustdoc", "cgo",
    "compile", "link", "buildid", "javac", "kotlinc", "scalac", "tsc", "esbuild", "protoc",
    // Build systems and package managers.
    "make", "gmake", "cmake", "ninja", "meson", "bazel", "cargo", "cargo-watch", "go", "air", "gradle", "mvn", "npm",
    "pnpm", "yarn", "pip", "pip3", "uv", "poetry", "bundle", "composer", "hpack", "cabal", "stack", "dotnet",
    // Version control, and debuggers, which start the actual program.
    "git", "hg", "svn", "dlv", "debugserver",
];

/// Why a program runs outside of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipReason {
    /// It is in `skip_processes`.
    Listed,
    /// It is a build tool.
    BuildTool,
}

#[derive(Debug, Clone)]
pub struct SkipRules {
    listed: HashSet<Vec<u8>>,
    build_tools: HashSet<Vec<u8>>,
}

impl SkipRules {
    pub fn new(settings: &Settings) -> Self {
        let bytes = |name: &String| name.clone().into_bytes();
        let mut build_tools = HashSet::new();
        if settings.skip_build_tools {
            build_tools.extend(BUILD_TOOLS.iter().map(|name| name.as_bytes().to_vec()));
            build_tools.extend(settings.skip_extra_build_tools.iter().map(bytes));
        }
        Self {
            listed: settings.skip_processes.iter().map(bytes).collect(),
            build_tools,
        }
    }

    /// Decides about a program by its path. Names are compared whole: `go` is not `gopher`.
    pub fn choose(&self, program: &[u8]) -> Option<SkipReason> {
        let name = program.rsplit(|byte| *byte == b'/').next();
        let is_in = |set: &HashSet<Vec<u8>>| {
            set.contains(program) || name.is_some_and(|name| set.contains(name))
        };
        if is_in(&self.listed) {
            Some(SkipReason::Listed)
        } else if is_in(&self.build_tools) {
            Some(SkipReason::BuildTool)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, Layers};

    #[test]
    fn programs_are_chosen() {
        let listed = Some(SkipReason::Listed);
        let build_tool = Some(SkipReason::BuildTool);
        for (settings, program, expected) in [
            ("{}", "/usr/bin/gcc", build_tool),
            ("{}", "go", build_tool),
            ("{}", "/srv/gopher", None),
            ("{}", "/usr/bin/python3", None),
            ("{}", "/usr/bin/node", None),
            ("{skip_build_tools: false}", "/usr/bin/gcc", None),
            (
                "{skip_build_tools: false, skip_extra_build_tools: x}",
                "/bin/x",
                None,
            ),
            ("{skip_extra_build_tools: [x]}", "/bin/x", build_tool),
            ("{skip_processes: bash;node}", "/bin/bash", listed),
            ("{skip_processes: bash;node}", "/usr/bin/node", listed),
            ("{skip_processes: [/bin/bash]}", "/bin/bash", listed),
            ("{skip_processes: [/bin/bash]}", "/usr/bin/bash", None),
            ("{skip_processes: [gcc]}", "/usr/bin/gcc", listed),
            ("{skip_processes: [bash]}", "/srv/bash/app", None),
        ] {
            let resolved = Layers::new()
                .file("test", settings, Format::Yaml)
                .resolve()
                .unwrap();
            let rules = SkipRules::new(&resolved.settings);
            assert_eq!(
                rules.choose(program.as_bytes()),
                expected,
                "{settings} {program}"
            );
        }
    }
}
