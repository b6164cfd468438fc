//! The worked exchanges of docs/protocol, for the tests of the crates that speak them.

/// The bytes of the page's block of this name, without its comments.
pub(crate) fn bytes(page: &str, name: &str) -> Vec<u8> {
    let block = page.split("```hex ").find_map(|block| {
        let (title, rest) = block.split_once('\n')?;
        (title == name).then(|| rest.split("```").next())?
    });
    let lines = block.unwrap_or_else(|| panic!("no block {name}")).lines();
    let words = lines.flat_map(|line| line.split(';').next());
    let digits: Vec<u8> = words
        .flat_map(str::bytes)
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}
