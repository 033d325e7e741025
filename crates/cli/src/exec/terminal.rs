//! Lines on a terminal to which the program writes as well.
//!
//! The program writes to the terminal itself, so we do not know the column of the cursor. Asking the terminal for it would
//! put the answer into the program's input.

/// What is written before a line so that it begins in the first column and does not continue a line of the program.
///
/// As many spaces as a row has columns end in the same row if the cursor was in the first column, because terminals wrap
/// only before the next character. From any other column they end in the next row. Then the cursor returns to the first
/// column, and the spaces after it are erased. So a line that the program has begun stays as it is, and otherwise there is
/// neither a mark nor an empty row. Shells use the same method before a prompt (`PROMPT_SP` of zsh).
///
/// Without a known width there is always a new row: too few spaces would erase a line of the program.
pub(super) fn line_start(columns: Option<usize>) -> String {
    match columns {
        Some(columns) => format!("{:columns$}\r\x1b[K", ""),
        None => LINE_END.to_owned(),
    }
}

/// The program may have turned off that the kernel adds the carriage return.
pub(super) const LINE_END: &str = "\r\n";

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    /// The rows of a terminal after this output, without empty ones at the end.
    fn rows(columns: u16, output: &str) -> Vec<String> {
        let size = |number| NonZeroU16::new(number).unwrap();
        let mut terminal = vt100::Parser::new(size(8), size(columns), 0);
        terminal.process(output.as_bytes());
        let rows = terminal.screen().rows(0, columns);
        let mut rows: Vec<String> = rows.map(|row| row.trim_end().to_owned()).collect();
        while rows.last().is_some_and(String::is_empty) {
            rows.pop();
        }
        rows
    }

    fn ours(columns: Option<usize>) -> String {
        format!("{}ours{LINE_END}", line_start(columns))
    }

    #[test]
    fn a_line_is_in_a_row_of_its_own_wherever_the_cursor_is() {
        for columns in [4, 5, 20, 80] {
            let line = ours(Some(columns.into()));
            for begun in 1..=usize::from(columns) {
                let begun = "x".repeat(begun);
                let expected = ["before", &begun, "ours", "rest"];
                let expected = expected.map(|text| &text[..text.len().min(columns.into())]);
                let before = expected[0];
                let shown = rows(columns, &format!("{before}\r\n{begun}{line}rest"));
                assert_eq!(shown, expected, "{columns} columns");
            }
        }
    }

    #[test]
    fn in_the_first_column_nothing_is_left_of_the_spaces() {
        for columns in [4, 5, 20, 80] {
            let line = ours(Some(columns.into()));
            let shown = rows(columns, &format!("{line}one\r\n{line}{line}two\r\n"));
            assert_eq!(shown, ["ours", "one", "ours", "ours", "two"]);
            // A progress bar that the program is about to draw again.
            let shown = rows(columns, &format!("50%\r{line}60%"));
            assert_eq!(shown, ["ours", "60%"]);
        }
    }

    #[test]
    fn without_a_known_width_no_line_of_the_program_is_erased() {
        let line = ours(None);
        let shown = rows(80, &format!("begun{line}{line}rest"));
        assert_eq!(shown, ["begun", "ours", "", "ours", "rest"]);
    }
}
