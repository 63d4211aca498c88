"""The plug-ins of this package. Nothing outside of the folder imports them: `entry_points.txt`
declares their names, as the metadata of a user's package does, and `extensions` imports the object
behind a name when it is first used.
"""
