//! Every test that the page of field failures names is there, and is a test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{collections::BTreeSet, path::Path};

/// (rule, test, file) of every row of the page's tables.
fn rows(page: &str) -> Vec<(String, String, String)> {
    let cells = |line: &str| -> Option<[String; 3]> {
        let cells: Vec<String> =
            line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(|cell| cell.trim().to_owned()).collect();
        cells.try_into().ok()
    };
    let code = |cell: &str| Some(cell.strip_prefix('`')?.strip_suffix('`')?.to_owned());
    let row = |[rule, test, file]: [String; 3]| Some((rule, code(&test)?, code(&file)?));
    page.lines().filter_map(cells).filter_map(row).collect()
}

/// `text` has a function of that name, and it is a test: by its attribute, or by a line in the list of the end-to-end tests.
fn has_test(text: &str, name: &str) -> bool {
    if text.contains(&format!("async fn {name}(")) && text.contains(&format!("test!({name}, ")) {
        return true;
    }
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.iter().enumerate().any(|(at, line)| {
        let starts = [format!("fn {name}("), format!("async fn {name}(")].iter().any(|start| line.starts_with(start));
        let above = lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        starts && above.into_iter().any(|line| *line == "#[test]" || line.starts_with("#[tokio::test"))
    })
}

#[test]
fn every_test_that_the_page_of_field_failures_names_is_there() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(repository.join("docs/src/field-failures.md")).unwrap();
    let rows = rows(&page);
    let tables = page.lines().filter(|line| line.starts_with('|')).count();
    // Each of the six tables has a head of two lines.
    assert_eq!(rows.len() + 12, tables, "a row is not: rule, `test`, `file`");
    assert!(rows.len() > 50, "the rows were found: {}", rows.len());
    let missing: Vec<_> = rows
        .iter()
        .filter(|(_, test, file)| {
            !std::fs::read_to_string(repository.join(file)).is_ok_and(|text| has_test(&text, test))
        })
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
    let rules: BTreeSet<&String> = rows.iter().map(|(rule, _, _)| rule).collect();
    assert_eq!(rules.len(), rows.len(), "a rule stands twice");
}

#[test]
fn a_name_that_is_no_test_does_not_count() {
    let text = "#[test]\nfn a_rule_holds() {}\n\nfn helper() {}\n    #[tokio::test]\n    async fn another() {}\n";
    assert!(has_test(text, "a_rule_holds") && has_test(text, "another"));
    assert!(!has_test(text, "helper") && !has_test(text, "a_rule"));
    let end_to_end = "vec![\n    test!(listed, Operator, 1, 60),\n]\nasync fn listed() {}\nasync fn unlisted() {}\n";
    assert!(has_test(end_to_end, "listed") && !has_test(end_to_end, "unlisted"));
}
