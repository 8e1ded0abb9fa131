"""The pages of the site, and what draws their pictures."""
