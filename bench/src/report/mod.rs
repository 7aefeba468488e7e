//! Reports: results as a bench measures them ([`results`]), and their common format
//! ([`mod@format`]), from which terminal output, JSON, HTML and Markdown are rendered.

pub(crate) mod format;
mod html;
pub(crate) mod machine;
mod markdown;
mod number;
mod plot;
mod published;
pub(crate) mod results;
#[cfg(test)]
mod tests;
mod text;

use command::Failure;
use command::bench::Outputs;

use self::format::Report;

/// Prints a report, and writes it to the requested files.
pub(crate) fn write(report: &Report, outputs: &Outputs) -> Result<(), Failure> {
    // The reader of standard output may have closed it early.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text::render(report).as_bytes());
    let mut files = Vec::new();
    if let Some(path) = &outputs.json {
        files.push((path.clone(), format::json(report)));
    }
    if let Some(path) = &outputs.html {
        files.push((path.clone(), html::render(report)));
    }
    match &outputs.markdown {
        Some(dir) if dir.is_dir() => {
            let pages = markdown::pages(report);
            files.extend(pages.map(|(name, page)| (dir.join(name), page)));
        }
        Some(path) => files.push((path.clone(), markdown::page(report))),
        None => {}
    }
    for (path, contents) in files {
        std::fs::write(&path, contents)
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}
