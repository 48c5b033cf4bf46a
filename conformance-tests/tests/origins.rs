//! The page about the two original systems says the truth: each row names tests, and they exist.

#![allow(clippy::unwrap_used, reason = "a test program")]

use std::path::Path;

use conformance_tests::Case;

#[test]
fn each_row_of_the_origins_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = root.join("docs/origins.md");
    if !page.exists() {
        println!("SKIPPED: the suite stands outside its workspace");
        return;
    }
    let page = std::fs::read_to_string(page).unwrap();
    let rows = page.lines().filter(|line| {
        line.starts_with('|') && !line.starts_with("|---") && !line.starts_with("| behaviour")
    });
    let mut count = 0;
    for row in rows {
        count += 1;
        let shown = row.trim_matches('|').rsplit('|').next().unwrap();
        let places: Vec<_> = shown
            .split('`')
            .filter(|part| part.contains("::"))
            .collect();
        assert!(!places.is_empty(), "no test in the row: {row}");
        for place in places {
            let (file, test) = place.rsplit_once("::").unwrap();
            if !file.contains('/') {
                assert!(Case::named(place).is_some(), "there is no case {place}");
                continue;
            }
            let text = std::fs::read_to_string(root.join(file));
            let text = text.unwrap_or_else(|error| panic!("{place}: {error}"));
            assert!(
                text.contains(&format!("fn {test}(")),
                "{place} does not exist"
            );
        }
    }
    assert!(
        count > 20,
        "{count} rows: the page is not read as it is written"
    );
}
