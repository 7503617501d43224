"""The processes of a job: how they are started, meet, form groups, are watched, and become fewer and more."""
