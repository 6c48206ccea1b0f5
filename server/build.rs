//! Embeds the pages of `dashboard/dist/page` in the binary if they were built. Otherwise the broker serves a page that
//! says how to build them, so building the broker alone does not require Node.js.

use std::collections::hash_map::DefaultHasher;
use std::error::Error;
use std::fmt::Write as _;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::{env, fs};

#[expect(clippy::disallowed_methods, reason = "it is how cargo speaks to a build script")]
fn main() -> Result<(), Box<dyn Error>> {
    let dist = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../dashboard/dist");
    // The folder itself is in the repository, because cargo takes a missing path for a change on every build.
    println!("cargo:rerun-if-changed={}", dist.display());
    println!("cargo:rerun-if-changed=build.rs");
    let page = dist.join("page");
    let mut code = String::from("static FILES: &[File] = &[\n");
    if page.join("index.html").is_file() {
        let page = page.canonicalize()?;
        entry(&mut code, "/", &page.join("index.html"))?;
        let mut assets: Vec<PathBuf> = fs::read_dir(page.join("assets"))?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_, std::io::Error>>()?;
        assets.sort();
        for asset in assets {
            let name = asset.file_name().and_then(|name| name.to_str()).ok_or("a name that is no text")?;
            // The compressed variants are embedded next to the file that they belong to.
            if !name.ends_with(".gz") && !name.ends_with(".br") {
                entry(&mut code, &format!("/assets/{name}"), &asset)?;
            }
        }
    }
    code.push_str("];\n");
    fs::write(Path::new(&env::var("OUT_DIR")?).join("dashboard.rs"), code)?;
    Ok(())
}

fn entry(code: &mut String, path: &str, file: &Path) -> Result<(), Box<dyn Error>> {
    let mut hasher = DefaultHasher::new();
    fs::read(file)?.hash(&mut hasher);
    let tag = format!("W/\"{:016x}\"", hasher.finish());
    let shorter = |end: &str| {
        let shorter = PathBuf::from(format!("{}.{end}", file.display()));
        match shorter.is_file() {
            true => format!("Some(include_bytes!({shorter:?}))"),
            false => "None".to_owned(),
        }
    };
    writeln!(
        code,
        "    File {{ path: {path:?}, kind: {:?}, tag: {tag:?}, plain: include_bytes!({file:?}), gzip: {}, brotli: {} }},",
        kind(file)?,
        shorter("gz"),
        shorter("br"),
    )?;
    Ok(())
}

fn kind(file: &Path) -> Result<&'static str, String> {
    match file.extension().and_then(|end| end.to_str()) {
        Some("html") => Ok("text/html; charset=utf-8"),
        Some("js") => Ok("text/javascript; charset=utf-8"),
        Some("css") => Ok("text/css; charset=utf-8"),
        Some("svg") => Ok("image/svg+xml"),
        _ => Err(format!("what is {}? kind() does not know", file.display())),
    }
}
