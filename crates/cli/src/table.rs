//! Text tables.

/// Aligned columns, with the header first. Columns that are empty in all rows are left out.
pub(crate) fn render<const COLUMNS: usize>(
    header: [&str; COLUMNS],
    rows: &[[String; COLUMNS]],
) -> String {
    let length = |text: &str| text.chars().count();
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        let widest = rows.iter().map(|row| length(&row[column])).max();
        match widest.unwrap_or(0) {
            0 if !rows.is_empty() => 0,
            widest => widest.max(length(header[column])),
        }
    });
    let header = header.map(str::to_owned);
    let lines = std::iter::once(&header).chain(rows).map(|row| {
        let cells = row.iter().zip(widths).filter(|(_, width)| *width > 0);
        let cells: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_empty_ones_are_left_out() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        let rows = [
            row(["deployment/checkout", "", "app"]),
            row(["pod/a", "", ""]),
        ];
        assert_eq!(
            render(["TARGET", "USERS", "CONTAINERS"], &rows),
            "\
TARGET               CONTAINERS
deployment/checkout  app
pod/a
"
        );
        assert_eq!(render(["ID", "USER"], &[]), "ID  USER\n");
    }
}
