//! Fields of forms and of a page's own query, and how both become a query again.

use url::form_urlencoded;

/// What came, in its order.
#[derive(Clone, Debug, Default)]
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    pub(super) fn read(bytes: &[u8]) -> Self {
        Form(form_urlencoded::parse(bytes).into_owned().collect())
    }

    pub(super) fn of_query(query: Option<&str>) -> Self {
        Form::read(query.unwrap_or_default().as_bytes())
    }

    /// Takes a field; an empty one is as good as none.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        let all = self.all(name);
        all.into_iter().find(|value| !value.is_empty())
    }

    /// Takes every value of a name.
    pub(super) fn all(&mut self, name: &str) -> Vec<String> {
        let (these, others) = std::mem::take(&mut self.0).into_iter().partition(|(given, _)| given == name);
        self.0 = others;
        let these: Vec<(String, String)> = these;
        these.into_iter().map(|(_, value)| value).collect()
    }

    pub(super) fn is_set(&mut self, name: &str) -> bool {
        self.text(name).is_some()
    }

    pub(super) fn set(&mut self, name: &str, value: impl Into<String>) {
        self.all(name);
        let value = value.into();
        if !value.is_empty() {
            self.0.push((name.to_owned(), value));
        }
    }

    pub(super) fn look(&self, name: &str) -> &str {
        self.0.iter().find(|(given, _)| given == name).map_or("", |(_, value)| value)
    }

    /// As a query, `?` before it; nothing where there is nothing.
    pub(super) fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.0.iter().filter(|(_, value)| !value.is_empty()));
        let query = query.finish();
        if query.is_empty() { query } else { format!("?{query}") }
    }

    pub(super) fn with(&self, name: &str, value: &str) -> Self {
        let mut other = self.clone();
        other.set(name, value);
        other
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pairs().next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_is_written_again() {
        let mut form = Form::of_query(Some("state=dead&q=a%26b&type=&x=1"));
        assert_eq!(form.text("x").as_deref(), Some("1"));
        assert_eq!(form.text("type"), None);
        assert_eq!(form.look("q"), "a&b");
        assert_eq!(form.query(), "?state=dead&q=a%26b");
        assert_eq!(form.with("state", "").query(), "?q=a%26b");
        assert!(Form::of_query(Some("a=&b=")).is_empty());
    }
}
