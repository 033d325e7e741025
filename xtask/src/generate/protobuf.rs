//! The Go types of the sample shop's protocol. Rust code is generated while it is built and is not committed.
//!
//! `protox` reads the `.proto` file, so no `protoc` program is needed; the generators for Go are pinned as `tool`
//! dependencies in the `go.mod` of the module that uses their output.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use prost::Message;
use prost_types::FileDescriptorProto;
use prost_types::compiler::{CodeGeneratorRequest, CodeGeneratorResponse};

const GO_MODULE: &str = "shop/inventory";
const GO_GENERATORS: [&str; 2] = ["protoc-gen-go", "protoc-gen-go-grpc"];

/// What every generated file should contain now. The paths are relative to `root`, the top of the repository.
pub(crate) fn generated_files(root: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let request = request_for_go(root)?;
    let mut files = Vec::new();
    for generator in GO_GENERATORS {
        let response = run_go_tool(&root.join(GO_MODULE), generator, &request)
            .with_context(|| format!("generating Go code with {generator}"))?;
        for file in response.file {
            let path = Path::new(GO_MODULE).join(file.name());
            files.push((path, file.content().as_bytes().to_vec()));
        }
    }
    Ok(files)
}

fn request_for_go(root: &Path) -> Result<CodeGeneratorRequest> {
    let mut compiler = protox::Compiler::new([root.join("proto")])?;
    let proto_file: Vec<FileDescriptorProto> = compiler
        .include_imports(true)
        // Source information has the comments, which the generated code repeats.
        .include_source_info(true)
        .open_file("shop.proto")?
        .file_descriptor_set()
        .file;
    let package = proto_file
        .iter()
        .find(|file| file.name() == "shop.proto")
        .and_then(|file| file.options.as_ref())
        .map(prost_types::FileOptions::go_package)
        .context("shop.proto has no go_package option")?;
    let module = package
        .rsplit_once('/')
        .context("the go_package of shop.proto is not inside a module")?
        .0;
    Ok(CodeGeneratorRequest {
        file_to_generate: vec!["shop.proto".to_owned()],
        parameter: Some(format!("module={module}")),
        proto_file,
        ..Default::default()
    })
}

/// Runs a generator the way `protoc` does: the request on its standard input, the response on its standard output.
fn run_go_tool(
    module: &Path,
    tool: &str,
    request: &CodeGeneratorRequest,
) -> Result<CodeGeneratorResponse> {
    let mut child = Command::new("go")
        .args(["tool", tool])
        .current_dir(module)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting `go`: is it installed?")?;
    // The generators read the whole request before they write, so this cannot block for ever. A write that fails
    // means that the tool ended early, and then its exit status says more than a broken pipe.
    let written = child
        .stdin
        .take()
        .context("the tool has no standard input")?
        .write_all(&request.encode_to_vec());
    let output = child.wait_with_output()?;
    ensure!(
        output.status.success(),
        "`go tool {tool}` ended with {}",
        output.status
    );
    written?;
    let response = CodeGeneratorResponse::decode(output.stdout.as_slice())?;
    if let Some(error) = &response.error {
        bail!("{error}");
    }
    Ok(response)
}
