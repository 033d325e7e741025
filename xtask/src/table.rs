//! Plain text tables, for terminals and pipes.

/// Renders rows under their headers. Each column is as wide as its widest cell; columns named in `right` are aligned
/// to the right. No line ends with spaces.
pub(crate) fn render(headers: &[&str], right: &[&str], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = headers
        .iter()
        .enumerate()
        .map(|(column, header)| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| width(cell))
                .fold(width(header), usize::max)
        })
        .collect();
    let mut text = String::new();
    let header_cells = headers.iter().map(|header| (*header).to_owned()).collect();
    for row in std::iter::once(&header_cells).chain(rows) {
        text.push_str(&line(headers, right, &widths, row));
        text.push('\n');
    }
    text
}

fn line(headers: &[&str], right: &[&str], widths: &[usize], row: &[String]) -> String {
    let cells: Vec<String> = row
        .iter()
        .zip(headers.iter().zip(widths))
        .map(|(cell, (header, column_width))| {
            let padding = " ".repeat(column_width.saturating_sub(width(cell)));
            if right.contains(header) {
                format!("{padding}{cell}")
            } else {
                format!("{cell}{padding}")
            }
        })
        .collect();
    cells.join("  ").trim_end().to_owned()
}

fn width(cell: &str) -> usize {
    cell.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [
            vec![
                "format".to_owned(),
                "1.2 s".to_owned(),
                "1 passed".to_owned(),
            ],
            vec!["e2e".to_owned(), "101.0 s".to_owned(), String::new()],
        ];
        assert_eq!(
            render(&["phase", "time", "result"], &["time"], &rows),
            "phase      time  result\n\
             format    1.2 s  1 passed\n\
             e2e     101.0 s\n"
        );
    }
}
