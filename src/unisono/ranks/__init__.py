"""The processes of a job: how they start, meet, form groups, watch each other, and leave a group."""
