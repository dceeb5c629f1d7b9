-- The commands and the names of buffers, and nothing else: the rest of the plugin is loaded by the first use of one.
if vim.g.loaded_dsh then
  return
end
vim.g.loaded_dsh = true

if vim.fn.has("nvim-0.10") == 0 then
  vim.notify("dsh needs Neovim 0.10 or newer", vim.log.levels.ERROR)
  return
end

---@type table<string, vim.api.keyset.user_command>
local commands = {
  Dsh = {
    nargs = "?",
    complete = true,
    desc = "Sidebar: sessions of this directory, tree of the one in use",
  },
  DshSessions = { nargs = "*", bang = true, desc = "Pick a session; ! of all directories" },
  DshTree = { nargs = "*", complete = true, desc = "Tree of a session" },
  DshBranch = { nargs = "?", complete = true, desc = "New session from a prompt" },
  DshFork = { nargs = "?", complete = true, desc = "New session of everything up to an entry" },
  DshResume = {
    nargs = "*",
    complete = true,
    desc = "Resume a session with its agent in a terminal",
  },
  DshLabel = {
    nargs = "*",
    bang = true,
    complete = true,
    desc = "Label an entry; ! takes the label away",
  },
  DshSearch = { nargs = "*", bang = true, desc = "Search all sessions; ! this one" },
  DshRename = { nargs = "*", bang = true, desc = "Rename the session; ! takes the title away" },
  DshTouched = { nargs = "?", complete = "file", desc = "Entries that touched this file" },
  DshTranscript = { nargs = "*", complete = true, desc = "The session as a document" },
  DshPrompt = { nargs = "*", complete = true, desc = "Write to the session's agent" },
  DshStatus = { nargs = 0, desc = "State of the daemon" },
  DshStop = { nargs = 0, bang = true, desc = "Stop the daemon; ! at once" },
}

-- What `:edit` or a session file (`:mksession`) names.
vim.api.nvim_create_autocmd({ "BufReadCmd", "SessionLoadPost" }, {
  group = vim.api.nvim_create_augroup("dsh", {}),
  pattern = { "dsh://sidebar", "dsh-prompt://*" },
  callback = function(args)
    require("dsh.commands").read(args.buf, args.match)
  end,
})

for name, options in pairs(commands) do
  if options.complete == true then
    options.complete = function(lead, line, position)
      return require("dsh.commands").completed(name, lead, line:sub(1, position))
    end
  end
  vim.api.nvim_create_user_command(name, function(use)
    require("dsh.commands").run[name](use)
  end, options)
end
