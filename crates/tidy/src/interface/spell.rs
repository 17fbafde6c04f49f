//! Tokens as text that does not depend on line breaks.

use crate::source::{Kind, Token, closing, parameters_open, split_at_commas};

/// Whether a space stands between two tokens.
fn is_apart(earlier: &Token, token: &Token, is_path: bool) -> bool {
    let is_word = |token: &Token| !matches!(token.kind, Kind::Sign(_));
    let binary = |token: &Token| "=+{|".contains(token.text);
    match (earlier.kind, token.kind) {
        _ if is_word(earlier) && is_word(token) => true,
        (Kind::Sign('-' | '='), Kind::Sign('>')) => false,
        (_, Kind::Sign(',' | ';' | ')' | ']' | '>' | '?' | ':')) => false,
        (Kind::Sign(',' | ';' | '{'), _) | (_, Kind::Sign('}' | '-')) => true,
        (Kind::Sign(':'), _) => !is_path,
        (Kind::Sign('>'), _) => is_word(token) || "&*".contains(token.text) || binary(token),
        (Kind::Sign(')' | ']' | '}'), _) => is_word(token) || binary(token),
        _ => binary(earlier) || binary(token),
    }
}

/// Tokens on one line. A comma before a closing bracket is left out.
pub(super) fn spelled(tokens: &[Token]) -> String {
    let mut text = String::new();
    let mut earlier: Option<&Token> = None;
    let mut is_path = false;
    for (index, token) in tokens.iter().enumerate() {
        let closes = tokens
            .get(index + 1)
            .is_some_and(|next| matches!(next.kind, Kind::Sign(')' | ']' | '}' | '>')));
        if token.is_sign(',') && closes {
            continue;
        }
        if earlier.is_some_and(|earlier| is_apart(earlier, token, is_path)) {
            text.push(' ');
        }
        is_path = token.is_sign(':') && earlier.is_some_and(|earlier| earlier.is_sign(':'));
        text.push_str(token.text);
        earlier = Some(token);
    }
    text
}

/// What stands behind the first colon that is none of a path: the type of a field or a parameter.
pub(super) fn type_of<'s, 'a>(tokens: &'s [Token<'a>]) -> Option<&'s [Token<'a>]> {
    let mut index = 0;
    while let Some(token) = tokens.get(index) {
        match token.kind {
            Kind::Sign('(' | '[' | '{') => index = closing(tokens, index),
            Kind::Sign(':') if tokens.get(index + 1).is_some_and(|next| next.is_sign(':')) => {
                index += 2;
            }
            Kind::Sign(':') => return Some(&tokens[index + 1..]),
            _ => index += 1,
        }
    }
    None
}

/// Without the attributes at the beginning.
pub(super) fn without_attributes<'s, 'a>(mut tokens: &'s [Token<'a>]) -> &'s [Token<'a>] {
    while tokens.first().is_some_and(|token| token.is_sign('#')) {
        let open = tokens.iter().position(|token| token.is_sign('['));
        tokens = &tokens[open.map_or(tokens.len(), |open| closing(tokens, open))..];
    }
    tokens
}

/// A function, from what stands before `fn` to its end without a body. Names of parameters are left out:
/// callers do not write them.
pub(super) fn signature(tokens: &[Token]) -> String {
    let Some(open) = parameters_open(tokens) else {
        return spelled(tokens);
    };
    let end = closing(tokens, open);
    let parameters = split_at_commas(&tokens[open + 1..end - 1]);
    let types = parameters.into_iter().map(|parameter| {
        let parameter = without_attributes(parameter);
        let has_name = !parameter.iter().any(|token| token.is_word("self"));
        spelled(type_of(parameter).filter(|_| has_name).unwrap_or(parameter))
    });
    let types: Vec<String> = types.collect();
    let (begin, rest) = (spelled(&tokens[..open]), spelled(&tokens[end..]));
    let text = format!("{begin}({}) {rest}", types.join(", "));
    text.trim_end().to_owned()
}
